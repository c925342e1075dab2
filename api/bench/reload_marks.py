"""Which marks a ``prefixd bench reload`` meets, and its report as JSON. Pure functions of the samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean
from typing import Any

from api.bench.reload_plan import Trouble
from api.bench.reload_statistics import (
    BEST,
    CellSamples,
    Interval,
    mean_of,
    mean_tok_s,
    mean_ttft_s,
    p99_over,
    ratio,
)

OURS = "measured"
_COMPUTE, _LOAD = "always-compute", "always-load"
_RULES = ("static", "timeout")
_SINGLE = (_COMPUTE, _LOAD, *_RULES)
_MOST_MEAN_REGRET = 0.05
_MOST_REGRET = 0.15
_MOST_P99 = 1.05
_MOST_SPLIT = 0.65
_MOST_BREAK_EVEN_LATENCY_S = 0.1


class State(Enum):
    """Whether a mark is met; ``OPEN`` where the interval holds both answers."""

    MET = "met"
    OPEN = "open"
    MISSED = "missed"


@dataclass(frozen=True, slots=True)
class Mark:
    """One mark, and the figures it was judged by."""

    name: str
    state: State
    figures: str


@dataclass(frozen=True, slots=True)
class Findings:
    """A whole run: its cells, and whether every answer was the clean run's."""

    cells: Sequence[CellSamples]
    tokens_equal: bool

    def regrets(self) -> list[Interval]:
        """Return of each cell how much longer measured costs take than the best fixed split, as a share."""
        return [_less_one(ratio(runs[OURS], runs[BEST])) for runs in self._runs()]

    def mean_regret(self) -> Interval:
        """Return the mean of those."""
        return _less_one(mean_of([(runs[OURS], runs[BEST]) for runs in self._runs()]))

    def p99_over_compute(self) -> tuple[float, int]:
        """Return the pooled p99 over that of computing, and of how many requests."""
        return p99_over(self._runs(), OURS, _COMPUTE)

    def split_over_best_single(self) -> Interval | None:
        """Return at break-even our TTFT over the better of loading and computing; the worst such cell's."""
        found = []
        for cell, runs in zip(self.cells, self._runs(), strict=True):
            if _is_break_even(cell):
                better = min((runs[_COMPUTE], runs[_LOAD]), key=mean_ttft_s)
                found.append(ratio(runs[OURS], better))
        return max(found, default=None)

    def throughput_over_best_single(self) -> list[tuple[str, Interval]]:
        """Return of each cell with batches the best single policy, and our tokens a second over its."""
        found = []
        for cell, runs in zip(self.cells, self._runs(), strict=True):
            if cell.cell.concurrency > 1:
                best = max(_SINGLE, key=lambda arm: mean_tok_s(runs[arm]))
                found.append((best, ratio(runs[OURS], runs[best], mean_tok_s)))
        return found

    def over_rule(self, rule: str) -> list[Interval]:
        """Return of each cell our mean TTFT over that of ``rule``."""
        return [ratio(runs[OURS], runs[rule]) for runs in self._runs()]

    def _runs(self) -> list[dict[str, list[Any]]]:
        return [cell.runs() for cell in self.cells]


def marks_of(findings: Findings) -> list[Mark]:
    """Judge every mark."""
    regrets, mean, (p99, num_p99) = findings.regrets(), findings.mean_regret(), findings.p99_over_compute()
    worst = max(regrets, key=lambda regret: regret.value)
    marks = [
        _at_most("mean regret", mean, _MOST_MEAN_REGRET),
        _at_most("worst cell's regret", worst, _MOST_REGRET),
        Mark(
            "p99 over always-compute",
            State.MET if p99 <= _MOST_P99 else State.MISSED,
            f"{p99:.3f} of {num_p99} requests, at most {_MOST_P99}",
        ),
    ]
    marks += [_not_worse(rule, findings.over_rule(rule)) for rule in _RULES]
    if (split := findings.split_over_best_single()) is not None:
        marks.append(_at_most("both over the better one at break-even", split, _MOST_SPLIT))
    for best, rate in findings.throughput_over_best_single():
        state = State.MET if rate.value >= 1 else State.OPEN if rate.high >= 1 else State.MISSED
        marks.append(Mark(f"tokens a second, over {best}", state, f"{_shown(rate)}, at least 1"))
    answers = State.MET if findings.tokens_equal else State.MISSED
    return [*marks, Mark("every answer is the clean run's", answers, str(findings.tokens_equal).lower())]


def report_of(findings: Findings) -> dict[str, Any]:
    """Return the figures of the report; rates and plans are added by who measured them."""
    split = findings.split_over_best_single()
    p99, num_p99 = findings.p99_over_compute()
    mean = findings.mean_regret()
    return {
        "cells": [_cell_report(cell) for cell in findings.cells],
        "mean_regret": mean.value,
        "mean_regret_interval": [mean.low, mean.high],
        "p99_over_compute": p99,
        "p99_requests": num_p99,
        "split_over_best_single_at_break_even": split.value if split else None,
        "tokens_equal": findings.tokens_equal,
        "marks": {mark.name: mark.state.value for mark in marks_of(findings)},
    }


def _cell_report(samples: CellSamples) -> dict[str, Any]:
    cell, runs = samples.cell, samples.runs()
    best, _ = samples.best_fixed()
    regret = _less_one(ratio(runs[OURS], runs[BEST]))
    return {
        "prompt_tokens": cell.prompt_tokens,
        "rate_over_break_even": samples.rate,
        "break_even_bytes_per_s": samples.break_even_bytes_per_s,
        "is_throttled": cell.rate is not None,
        "latency_s": cell.latency_s,
        "concurrency": cell.concurrency,
        "trouble": cell.trouble.value,
        "samples": len(runs[OURS]),
        "samples_by_arm": {arm: len(own) for arm, own in runs.items()},
        "ttft_mean_s": {arm: mean_ttft_s(own) for arm, own in runs.items()},
        "ttft_worst_s": {arm: max(max(run.ttft_s) for run in own) for arm, own in runs.items()},
        "tok_s": {arm: mean_tok_s(own) for arm, own in runs.items()},
        "best_fixed_split": best,
        "fixed_splits_s": {
            arm: mean_ttft_s(own) for arm, own in samples.by_arm.items() if arm in samples.fixed
        },
        "regret": regret.value,
        "regret_interval": [regret.low, regret.high],
    }


def _at_most(name: str, found: Interval, most: float) -> Mark:
    state = State.MET if found.high <= most else State.MISSED if found.low > most else State.OPEN
    return Mark(name, state, f"{_shown(found)}, at most {most}")


def _not_worse(rule: str, ratios: Sequence[Interval]) -> Mark:
    """Judge by cells in which the interval leaves no doubt, and by the mean over all."""
    num_worse = sum(found.low > 1 for found in ratios)
    mean, worst = fmean(found.value for found in ratios), max(ratios)
    is_met = not num_worse and mean < 1
    told = f"{mean:.3f} on average, worse in {num_worse} of {len(ratios)} cells, worst {_shown(worst)}"
    return Mark(f"TTFT over {rule}", State.MET if is_met else State.MISSED, told)


def _is_break_even(samples: CellSamples) -> bool:
    cell = samples.cell
    is_plain = cell.trouble is Trouble.NONE and cell.concurrency == 1
    return cell.rate == 1.0 and is_plain and cell.latency_s <= _MOST_BREAK_EVEN_LATENCY_S


def _less_one(found: Interval) -> Interval:
    return Interval(found.value - 1, found.low - 1, found.high - 1)


def _shown(found: Interval) -> str:
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"
