"""The reload grid: measured costs against fixed rules and fixed splits, on a disk as it is and throttled."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from api.bench.reload_plan import Cell, Known, arms_of, rate_of, rounds_of, runs_of
from api.bench.reload_runs import Runner, running
from api.bench.reload_statistics import BEST, CellSamples, Sample, ratio
from benchmarks.on_gpu.findings import Budget, Findings
from benchmarks.on_gpu.served import Bench
from engine_adapter.assemble import Serving
from engine_adapter.serving_config import ServingConfig
from kvstore.clock import Clock
from kvstore.registry import Registry

_LATENCY_S = 0.005
_MOST_REGRET = 0.15
_MOST_ROUNDS = 6
_SHARE_OF_TIME = 0.8


def reload_grid(bench: Bench, budget: Budget) -> Findings:
    """Run the cells of one prompt's length at several rates, as ``prefixd bench reload`` does."""
    findings = Findings()
    model = bench.served_model

    def make(config: ServingConfig, registry: Registry, clock: Clock) -> Serving:
        return bench.assemble(model, config, registry, clock)

    with (
        TemporaryDirectory(dir=bench.folder) as name,
        running(bench.config(Path(name)), Path(name), make) as runner,
    ):
        known = _known(runner, bench.size.grid_tokens)
        cells = [_cell(bench.size.grid_tokens, rate) for rate in bench.size.grid_rates]
        too_fast = [cell for cell in cells if cell.rate and cell.rate > known.unthrottled[cell.prompt_tokens]]
        for cell in too_fast:
            findings.tell(_name(cell), "not measured: the disk itself is slower")
        cells = [cell for cell in cells if cell not in too_fast]
        rounds = rounds_of(cells, known, budget.left_s * _SHARE_OF_TIME, most_rounds=_MOST_ROUNDS)
        for cell, num_rounds in rounds.items():
            if budget.is_spent:
                findings.tell(_name(cell), "not measured: no time was left")
                continue
            _report(cell, _measured(runner, cell, known, num_rounds), findings)
    findings.figures["compute_s"] = known.compute_s
    findings.figures["unthrottled_over_break_even"] = known.unthrottled
    return findings


def _cell(num_tokens: int, rate: float | None) -> Cell:
    return Cell(num_tokens, rate, 0.0 if rate is None else _LATENCY_S)


def _known(runner: Runner, num_tokens: int) -> Known:
    runner.prepare(num_tokens, 1)
    compute_s = runner.compute_s(num_tokens)
    break_even_bytes_per_s = runner.prompt_bytes(num_tokens) / compute_s
    unthrottled = runner.unthrottled_bytes_per_s(num_tokens) / break_even_bytes_per_s
    return Known({num_tokens: compute_s}, {num_tokens: unthrottled}, deadline_s=30.0, steps=(0,))


def _measured(runner: Runner, cell: Cell, known: Known, num_rounds: int) -> dict[str, list[Sample]]:
    """Return the runs of each policy, and those of the best fixed split."""
    dice = random.Random(2026)  # noqa: S311 - the same order in every run
    break_even = runner.prompt_bytes(cell.prompt_tokens) / known.compute_s[cell.prompt_tokens]
    fixed = frozenset(arm.name for arm in arms_of(cell, known) if arm.computed_share is not None)
    samples = CellSamples(cell, rate_of(cell, known), break_even, fixed)
    runner.warm_up(cell, known)
    for number, arm in runs_of(cell, known, num_rounds, dice):
        samples.add(arm.name, replace(runner.measure(cell, arm, known).sample, round=number))
    return samples.runs()


def _report(cell: Cell, runs: dict[str, list[Sample]], findings: Findings) -> None:
    ttft_s = {arm: _median_s(samples) for arm, samples in runs.items()}
    regret = ratio(runs["measured"], runs[BEST], _median_s)
    findings.tell(
        _name(cell), ", ".join(f"{arm} {each_s * 1e3:.0f}" for arm, each_s in ttft_s.items()) + " ms"
    )
    findings.mark_at_most(
        f"{_name(cell)}: measured over the best fixed split", regret.value, 1 + _MOST_REGRET
    )
    findings.figures[_name(cell)] = {"ttft_s": ttft_s, "measured_over_best": regret._asdict()}


def _median_s(samples: Sequence[Sample]) -> float:
    return median(sample.mean_s for sample in samples)


def _name(cell: Cell) -> str:
    rate = "the disk itself" if cell.rate is None else f"{cell.rate:g} of break-even"
    return f"reload {cell.prompt_tokens} at {rate}"
