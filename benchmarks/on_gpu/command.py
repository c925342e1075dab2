"""The command line of ``benchmarks/gpu.py``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.on_gpu.findings import Part
from benchmarks.on_gpu.run import PARTS, Outcome, report_of, run_parts
from benchmarks.on_gpu.served import Bench
from benchmarks.on_gpu.sizes import FULL, SMOKE, TINY, Size
from benchmarks.on_gpu.table import heading, table_of

_SMOKE_PARTS = ("copies", "exact", "rounded", "ttft")
_MINUTES, _SMOKE_MINUTES = 8.0, 3.0


def main(description: str, arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for; exits with status 1 when a part has failed."""
    began_s = time.monotonic()
    chosen = _parsed(description, arguments)
    minutes = chosen.minutes or (_SMOKE_MINUTES if chosen.smoke else _MINUTES)
    torch.set_float32_matmul_precision("highest")  # some images say otherwise, and fp32 would not be fp32
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        bench = Bench(_size(chosen), torch.device(chosen.device), Path(folder), chosen.decode_graphs)
        outcomes = run_parts(bench, _parts(chosen), began_s + 60 * minutes, _tell)
        report = report_of(bench, outcomes, time.monotonic() - began_s)
    print(table_of(outcomes))
    text = json.dumps(report, indent=2)
    if chosen.json:
        chosen.json.write_text(text + "\n")
    else:
        print(text)
    if failed := [outcome.part.name for outcome in outcomes if outcome.state == "failed"]:
        raise SystemExit(f"failed: {', '.join(failed)}")


def _size(chosen: argparse.Namespace) -> Size:
    if chosen.tiny:
        return TINY
    return SMOKE if chosen.smoke else FULL


def _parts(chosen: argparse.Namespace) -> list[Part]:
    names = chosen.parts or (_SMOKE_PARTS if chosen.smoke else [part.name for part in PARTS])
    return [part for part in PARTS if part.name in names]


def _tell(outcome: Outcome) -> None:
    print(heading(outcome), file=sys.stderr, flush=True)


def _parsed(description: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="the short form, under three minutes")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="in miniature, for a trial on a CPU")
    parser.add_argument("--parts", type=_names, metavar="NAME,...", help="these parts only")
    parser.add_argument("--minutes", type=float, help="parts that could take longer than this are skipped")
    parser.add_argument(
        "--no-decode-graphs", dest="decode_graphs", action="store_false", help="record no decode steps"
    )
    parser.add_argument("--json", type=Path, help="file for the report; else it is printed")
    parser.add_argument("--folder", type=Path, help="where the disk tier goes for the run")
    return parser.parse_args(arguments)


def _names(text: str) -> list[str]:
    names, known = text.split(","), [part.name for part in PARTS]
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is no part; these are: {', '.join(known)}")
    return names
