"""Our sidecar beside LMCache's, on one machine and through shared memory, in one run.

    python benchmarks/sidecars.py --lmcache PYTHON [--rounds N] [--json FILE]

Each stores fresh 128 MiB until they can be loaded, and loads them into memory of its own; ours in blocks of
16 tokens (2 MiB), which it verifies, LMCache's in its chunks of 256 (32 MiB). They work in turns, in another
order each round, beside a memcpy of the same bytes. A figure is the median over rounds, a ratio the median
of the ratios within a round. Leave the machine alone meanwhile.

LMCache needs an environment of its own, whose interpreter ``--lmcache`` names: one of version 0.5.6, built
with its native extensions.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.sides.process import Side, started

OURS, LMCACHE = "prefixd", "lmcache"
_BLOCK_BYTES, _NUM_BLOCKS = 2 << 20, 64
_MEASURED_GB = _BLOCK_BYTES * _NUM_BLOCKS / 1e9
_MARK = 3.0
_FOR_LMCACHE = {"PYTHONHASHSEED": "0", "LMCACHE_LOG_LEVEL": "ERROR", "LMCACHE_TRACK_USAGE": "false"}


def main() -> None:
    """Run the benchmark."""
    arguments = _arguments()
    ours = [sys.executable, "prefixd_sidecar", str(_BLOCK_BYTES), str(_NUM_BLOCKS)]
    theirs = [arguments.lmcache, "lmcache_sidecar", str(_BLOCK_BYTES * _NUM_BLOCKS)]
    with ExitStack() as stack:
        sides = [
            stack.enter_context(started(name, "", command, _FOR_LMCACHE, is_verbose=arguments.verbose))
            for name, command in ((OURS, ours), (LMCACHE, theirs))
        ]
        for side in sides:
            side.result()
        report = measure(sides, arguments.rounds)
    Console().print(table(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def measure(sides: Sequence[Side], num_rounds: int) -> dict[str, Any]:
    """Return each side's rates, and ours over LMCache's; the round before the first is not counted."""
    rng = random.Random(6)  # noqa: S311 - an order, no secret
    rounds: list[dict[str, float]] = []
    for number in track(range(num_rounds + 1), "rounds", console=Console(stderr=True)):
        found: dict[str, float] = {}
        for side in rng.sample(sides, len(sides)):
            for work in ("store", "load"):
                found[f"{side.name}_{work}_gb_s"] = _MEASURED_GB / side.ask(work)
            if side.name == OURS:
                found["memcpy_gb_s"] = _MEASURED_GB / side.ask("memcpy")
        if number:
            rounds.append(found)
    return {
        "figures": {name: median(found[name] for found in rounds) for name in rounds[0]},
        "marks": [_mark(work, rounds) for work in ("store", "load")],
    }


def _mark(work: str, rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    ratio = median(found[f"{OURS}_{work}_gb_s"] / found[f"{LMCACHE}_{work}_gb_s"] for found in rounds)
    return {"figure": f"{work}_gb_s", "ratio": ratio, "bound": _MARK, "met": ratio >= _MARK}


def table(report: Mapping[str, Any]) -> Table:
    """Return the figures and marks as a table."""
    made = Table(title="sidecars through shared memory, GB/s; medians")
    for column in ("", OURS, LMCACHE, "ratio", "mark", "met"):
        made.add_column(column, justify="left" if not column else "right")
    for mark in report["marks"]:
        rates = [report["figures"][f"{side}_{mark['figure']}"] for side in (OURS, LMCACHE)]
        ours, theirs = (f"{rate:.2f}" for rate in rates)
        made.add_row(
            mark["figure"].removesuffix("_gb_s"), ours, theirs, f"{mark['ratio']:.2f}",
            str(mark["bound"]), "yes" if mark["met"] else "no",
        )  # fmt: skip
    made.add_row("memcpy", f"{report['figures']['memcpy_gb_s']:.2f}", "", "", "", "")
    return made


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lmcache", required=True, help="the interpreter of an environment with LMCache")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--verbose", action="store_true", help="show what the sides print")
    parser.add_argument("--json", type=Path, help="file for the report")
    return parser.parse_args()


if __name__ == "__main__":
    main()
