"""vLLM with our connector beside vLLM without it: first tokens from our store, storing, slow tiers.

    python benchmarks/vllm_connector.py MODEL --vllm PYTHON [--only hits,overhead,lines] [--json FILE]

``PYTHON`` is an interpreter with vLLM and what prefixd needs (``make test-vllm`` makes one in
``.engines/vllm``), MODEL a folder with safetensors. Leave the machine alone meanwhile.

- hits: the first token of a prompt of 2,000 tokens that vLLM has itself, and that it has from our store in
  host memory after its own was forgotten, in turns.
- overhead: prompts that nobody has seen, in turns with a vLLM that has no connector; in several launches of
  both, for one process may be slower than another by some percent as long as it runs.
- lines: prompts that only a disk tier has, behind a line of a tenth of the rate at which loading takes as
  long as computing, of that rate, of ten times that, one that has stalled, and one of ten times that which
  gets ten times slower half-way through each load; loaded by what was measured, all, and none.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.sides.process import Side, started

_OFFLINE = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING",
}  # fmt: skip
_PARTS = ("hits", "overhead", "lines")
_LONG, _SHORT = 2000, 1000
_LAUNCHES = 3
_LEARNING, _MEASURED, _MEASURED_ALL = 3, 8, 4
_NONE, _ALL, _MEASURED_COSTS = "always-compute", "always-load", "measured"
_BOUNDS = {"hits": 1.25, "overhead": 1.03, "lines": 1.05}
_VOCABULARY = 10_000

Figures = dict[str, Any]


def main() -> None:
    """Run the benchmark."""
    arguments = _arguments()
    report: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        console = Console(stderr=True)

        @contextmanager
        def side(name: str, settings: Mapping[str, Any] | None) -> Iterator[Side]:
            told = "none" if settings is None else json.dumps(settings)
            command = [arguments.vllm, "vllm_connector_side", arguments.model, told]
            with started(name, "", command, _OFFLINE, is_verbose=arguments.verbose) as begun:
                begun.result()
                yield begun

        memory = {"host_bytes": 4 << 30, "cache_path": f"{folder}/cache"}
        disk = memory | {"host_bytes": 0, "disk_bytes": 4 << 30, "disk_path": f"{folder}/disk"}
        prompts = _prompts(random.Random(5))  # noqa: S311 - prompts, no secrets
        if "hits" in arguments.only:
            with side("ours", memory) as ours:
                report["hits"] = hits(ours, prompts)
            console.print(report["hits"])
        if "overhead" in arguments.only:
            pairs = list[tuple[float, float]]()
            for _ in range(_LAUNCHES):
                with side("ours", memory) as ours, side("without", None) as without:
                    pairs += unseen(ours, without, prompts)
            report["overhead"] = overhead(pairs)
            console.print(report["overhead"])
        if "lines" in arguments.only:
            with side("ours", disk) as ours:
                report["lines"] = lines(ours, prompts, console)
    Console().print(_table(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def hits(ours: Side, prompts: Iterator[list[int]]) -> Figures:
    """Return the times of vLLM's own hits and of ours, and their ratio in pairs."""
    prompt = (next(prompts) * 3)[:_LONG]
    ours.ask("ttft_s", prompt=prompt)
    pairs = []
    for _ in range(_LEARNING + 2 * _MEASURED):
        own_s = ours.ask("ttft_s", prompt=prompt)
        ours.ask("forget")
        pairs.append((own_s, ours.ask("ttft_s", prompt=prompt)))
    pairs = pairs[_LEARNING:]
    return {
        "own_s": median(own for own, _ in pairs),
        "loaded_s": median(loaded for _, loaded in pairs),
        "ratio": median(loaded / own for own, loaded in pairs),
    }


def unseen(ours: Side, without: Side, prompts: Iterator[list[int]]) -> list[tuple[float, float]]:
    """Return the times of prompts that nobody has seen, ours and without, in pairs."""
    pairs = []
    for number in range(2 + 2 * _MEASURED):
        prompt, times = next(prompts), dict[str, float]()
        for side in (ours, without) if number % 2 else (without, ours):
            times[side.name] = side.ask("ttft_s", prompt=prompt)
        pairs.append((times["ours"], times["without"]))
    return pairs[2:]


def overhead(pairs: Sequence[tuple[float, float]]) -> Figures:
    """Return the medians of such pairs, and of their ratios."""
    return {
        "ours_s": median(ours for ours, _ in pairs),
        "without_s": median(without for _, without in pairs),
        "ratio": median(ours / without for ours, without in pairs),
        "ratio_of_sums": sum(ours for ours, _ in pairs) / sum(without for _, without in pairs),
    }


def lines(ours: Side, prompts: Iterator[list[int]], console: Console) -> dict[str, Figures]:
    """Return each line's times by who decides, and ratios to computing and to the better of all and none."""
    asked = [next(prompts) for _ in range(_MEASURED)]
    ours.ask("decide_by", policy=_NONE)
    computed_s = median([ours.ask("ttft_s", prompt=prompt) for prompt in asked][1:])
    ours.ask("flush")
    loadable = (_SHORT - 1) // 128 * ours.ask("block_bytes")
    even = loadable / computed_s
    kinds: dict[str, Mapping[str, Any]] = {
        "a tenth": {"bytes_per_s": even / 10},
        "break-even": {"bytes_per_s": even},
        "ten times": {"bytes_per_s": even * 10},
        "ten times slower half-way": {"bytes_per_s": even * 10, "slower_after_bytes": loadable // 2},
        "stalled": {"bytes_per_s": even * 10, "is_stalled": True},
    }
    found = {}
    for name, line in kinds.items():
        found[name] = _one_line(ours, asked, line, computed_s)
        console.print(name, {key: value for key, value in found[name].items() if key != "times"})
    return found


def _one_line(ours: Side, asked: Sequence[list[int]], line: Mapping[str, Any], computed_s: float) -> Figures:
    ours.ask("set_line", **line)
    policies = [_NONE, _MEASURED_COSTS, *([] if line.get("is_stalled") else [_ALL])]
    times: dict[str, list[float]] = {policy: [] for policy in policies}
    order = random.Random(1)  # noqa: S311 - an order, no secret
    for prompt in asked:
        for policy in order.sample(policies, len(policies)):
            if policy == _ALL and len(times[_ALL]) == _MEASURED_ALL:
                continue
            ours.ask("decide_by", policy=policy)
            times[policy].append(_again(ours, prompt))
    ours.ask("set_line")
    ours_s, none_s, all_s = times[_MEASURED_COSTS], times[_NONE], times.get(_ALL, [])
    better_s = min(mean(none_s), mean(all_s) if all_s else mean(none_s))
    return {
        "computed_s": computed_s, "none_s": mean(none_s), "all_s": mean(all_s) if all_s else None,
        "ours_s": mean(ours_s), "worst_s": max(ours_s), "worst_none_s": max(none_s),
        "mean_ratio": mean(ours_s) / mean(none_s), "worst_ratio": max(ours_s) / max(none_s),
        "ratio": mean(ours_s) / better_s, "times": times,
    }  # fmt: skip


def _again(ours: Side, prompt: list[int]) -> float:
    ours.ask("forget")
    return float(ours.ask("ttft_s", prompt=prompt))


def _prompts(random_: random.Random) -> Iterator[list[int]]:
    while True:
        yield [random_.randrange(100, _VOCABULARY) for _ in range(_SHORT)]


def _table(report: Mapping[str, Any]) -> Table:
    made = Table(title="vLLM with our connector")
    for column in ("", "seconds", "ratio", "at most", "met"):
        made.add_column(column, justify="left" if not column else "right")
    for part in ("hits", "overhead"):
        if part in report:
            figures = report[part]
            seconds = " / ".join(f"{figures[name]:.3f}" for name in figures if name.endswith("_s"))
            _row(made, part, seconds, figures["ratio"], _BOUNDS[part])
    for name, figures in report.get("lines", {}).items():
        for about, ratio in (("mean", "mean_ratio"), ("worst", "worst_ratio"), ("to the better", "ratio")):
            seconds = f"{figures['ours_s']:.3f} / {figures['none_s']:.3f}"
            _row(made, f"{name}, {about}", seconds, figures[ratio], _BOUNDS["lines"])
    return made


def _row(table: Table, name: str, seconds: str, ratio: float, bound: float) -> None:
    table.add_row(name, seconds, f"{ratio:.3f}", f"{bound}", "yes" if ratio <= bound else "no")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", help="folder with safetensors")
    parser.add_argument("--vllm", required=True, help="interpreter that has vLLM")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(_PARTS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
