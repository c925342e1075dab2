"""The bundled engine beside vLLM on a CPU and transformers' own ``generate``, in one run.

    python benchmarks/engines.py [--model DIR] [--vllm PYTHON] [--rounds N] [--json FILE]

Every engine runs in a process of its own, once in each dtype, and they work in turns, in another order each
round. Prompts are random tokens, new ones each time. A figure is the median over rounds, of each engine in
the dtype in which it does better; a ratio is the median of the ratios within a round. Leave the machine alone
meanwhile.

vLLM needs an environment of its own, whose interpreter ``--vllm`` names; without it that side is left out.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from api.folders import cache_folder
from benchmarks.sides.process import Side, started

OURS, VLLM, GENERATE = "prefixd", "vllm", "transformers"
_LONG, _SHORT, _DECODED = 2000, 64, 64
_BATCHES = (1, 8)
_FOR_ALL = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
_FOR_VLLM = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


@dataclass(frozen=True)
class Mark:
    """A ratio to be reached: ``figure`` of ours beside ``other``'s, more is better where ``is_rate``."""

    figure: str
    other: str
    bound: float
    is_rate: bool = True


MARKS = (
    Mark("prefill_tok_s", VLLM, 1.25),
    Mark("decode_1_tok_s", VLLM, 1.0),
    Mark("decode_8_tok_s", VLLM, 0.9),
    Mark("prefill_tok_s", GENERATE, 1.0),
    Mark("decode_1_tok_s", GENERATE, 1.0),
    Mark("decode_8_tok_s", GENERATE, 1.0),
    Mark("ttft_hit_device_s", VLLM, 0.35, is_rate=False),
    Mark("ttft_hit_host_s", VLLM, 0.5, is_rate=False),
    Mark("ttft_hit_disk_s", VLLM, 0.5, is_rate=False),
)
OWN_MARKS = {"itl_p99_by_median_in_prefill": 2.0, "overhead_of_a_step_s": 0.0015}
Figures = dict[str, float]


def main() -> None:
    """Run the benchmark."""
    arguments = _arguments()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides = [stack.enter_context(side) for side in _sides(arguments, folder)]
        for side in sides:
            side.result()
        report = measure(sides, arguments.rounds)
    Console().print(table(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def measure(sides: Sequence[Side], num_rounds: int) -> dict[str, Any]:
    """Return the figures of each engine in its better dtype, and the marks."""
    rng = random.Random(4)  # noqa: S311 - prompts, no secrets
    rounds: dict[tuple[str, str], list[Figures]] = {(side.name, side.dtype): [] for side in sides}
    for number in track(range(num_rounds + 1), "rounds", console=Console(stderr=True)):
        for side in rng.sample(sides, len(sides)):
            figures = one_round(side, lambda num: rng.choices(range(1000, 40_000), k=num))
            if number:
                rounds[side.name, side.dtype].append(figures)
    return _report(rounds)


def one_round(side: Side, prompt: Callable[[int], list[int]]) -> Figures:
    """Measure everything once."""
    found = {"prefill_tok_s": _LONG / side.ask("answer", prompts=[prompt(_LONG)], max_tokens=1)}
    for size in _BATCHES:
        first_s, whole_s = (
            side.ask("answer", prompts=[prompt(_SHORT) for _ in range(size)], max_tokens=num)
            for num in (1, 1 + _DECODED)
        )
        found[f"decode_{size}_tok_s"] = size * _DECODED / (whole_s - first_s)
    if side.name != GENERATE:
        hits = side.ask("hits", prompt=prompt(_LONG))
        found |= {f"ttft_hit_{tier}_s": ttft_s for tier, ttft_s in hits.items()}
    if side.name == OURS:
        short = [prompt(_SHORT) for _ in range(_BATCHES[-1])]
        gaps = side.ask("gaps", decoding=short[1:], prompt=prompt(_LONG))
        found["itl_p99_by_median_in_prefill"] = quantiles(gaps, n=100)[-1] / median(gaps)
        found["overhead_of_a_step_s"] = side.ask("overhead", prompts=short, max_tokens=_DECODED)
    return found


def _report(rounds: Mapping[tuple[str, str], Sequence[Figures]]) -> dict[str, Any]:
    figures = {
        side: {name: median(one[name] for one in found) for name in found[0]}
        for side, found in rounds.items()
    }
    there = {name for name, _ in figures}
    marks = [*map(_own_mark(figures), OWN_MARKS.items())]
    marks += [_mark(mark, figures, rounds) for mark in MARKS if mark.other in there]
    return {
        "figures": {f"{name} {dtype}": found for (name, dtype), found in figures.items()},
        "marks": marks,
    }


def _own_mark(figures: Mapping[tuple[str, str], Figures]) -> Callable[[tuple[str, float]], dict[str, Any]]:
    def judged(mark: tuple[str, float]) -> dict[str, Any]:
        name, bound = mark
        value, dtype = min((found[name], dtype) for (side, dtype), found in figures.items() if side == OURS)
        return {"figure": name, "ours": value, "dtype": dtype, "bound": bound, "met": value <= bound}

    return judged


def _mark(
    mark: Mark,
    figures: Mapping[tuple[str, str], Figures],
    rounds: Mapping[tuple[str, str], Sequence[Figures]],
) -> dict[str, Any]:
    best = max if mark.is_rate else min
    ours, other = (
        best((side for side in figures if side[0] == name), key=lambda side: _of(figures[side], mark.figure))
        for name in (OURS, mark.other)
    )
    pairs = zip(rounds[ours], rounds[other], strict=True)
    ratio = median(mine[mark.figure] / _of(theirs, mark.figure) for mine, theirs in pairs)
    return {
        "figure": mark.figure,
        "ours": figures[ours][mark.figure],
        "dtype": ours[1],
        "other": " ".join(other),
        "theirs": _of(figures[other], mark.figure),
        "ratio": ratio,
        "bound": mark.bound,
        "met": ratio >= mark.bound if mark.is_rate else ratio <= mark.bound,
    }


def _of(figures: Figures, name: str) -> float:
    """Return a figure; who has but one tier is compared by that."""
    return figures[name] if name in figures else figures["ttft_hit_device_s"]


def table(report: Mapping[str, Any]) -> Table:
    """Return the marks as a table."""
    made = Table(title="the bundled engine beside others; medians, each side in its better dtype")
    for column in ("figure", "ours", "dtype", "theirs", "other", "ratio", "mark", "met"):
        made.add_column(column, justify="left" if column in {"figure", "dtype", "other"} else "right")
    for mark in report["marks"]:
        numbers = [f"{mark[name]:.4g}" if name in mark else "" for name in ("ours", "theirs", "ratio")]
        made.add_row(
            mark["figure"], numbers[0], mark["dtype"], numbers[1], mark.get("other", ""), numbers[2],
            str(mark["bound"]), "yes" if mark["met"] else "no",
        )  # fmt: skip
    return made


def _sides(arguments: argparse.Namespace, folder: Path) -> Iterator[AbstractContextManager[Side]]:
    for dtype in arguments.dtypes.split(","):
        model = [str(arguments.model), dtype]
        own = [str(arguments.chunk_tokens), str(folder / dtype)]
        yield _started(arguments, OURS, dtype, sys.executable, "prefixd_side", *model, *own)
        yield _started(arguments, GENERATE, dtype, sys.executable, "generate_side", *model)
        if arguments.vllm:
            yield _started(arguments, VLLM, dtype, arguments.vllm, "vllm_side", *model)


def _started(
    arguments: argparse.Namespace, name: str, dtype: str, *command: str
) -> AbstractContextManager[Side]:
    return started(name, dtype, command, {**_FOR_ALL, **_FOR_VLLM}, is_verbose=arguments.verbose)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=cache_folder() / "SmolLM2-135M-Instruct")
    parser.add_argument("--vllm", help="the interpreter of an environment with vLLM for CPUs")
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--chunk-tokens", type=int, default=2048, help="of ours, at most in a step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--verbose", action="store_true", help="show what the engines print")
    parser.add_argument("--json", type=Path, help="file for the report")
    return parser.parse_args()


if __name__ == "__main__":
    main()
