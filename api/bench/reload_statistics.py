"""What the samples of ``prefixd bench reload`` say: means, intervals, the best fixed split. All pure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from api.bench.reload_plan import Cell

BEST = "best_fixed_split"
_RESAMPLES = 2000
_FIXED_TOO = ("always-load", "always-compute")


class Interval(NamedTuple):
    """A value and the 95 % of it that resampling the runs leaves."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: its round (from 1), each request's TTFT in the order they came, tokens a second of all."""

    round: int
    ttft_s: tuple[float, ...]
    tok_s: float

    @property
    def mean_s(self) -> float:
        """Mean TTFT of the run's requests."""
        return fmean(self.ttft_s)


@dataclass(slots=True)
class CellSamples:
    """All runs of one cell, by arm; ``rate`` is over its own break-even, ``fixed`` are the fixed splits."""

    cell: Cell
    rate: float
    break_even_bytes_per_s: float
    fixed: frozenset[str]
    by_arm: dict[str, list[Sample]] = field(default_factory=dict)

    def add(self, arm: str, sample: Sample) -> None:
        """Take a run in."""
        self.by_arm.setdefault(arm, []).append(sample)

    def best_fixed(self) -> tuple[str, list[Sample]]:
        """Return the fixed split that is best on odd rounds, and its runs of even rounds."""
        odd = {arm: [run for run in self._runs(arm) if run.round % 2] for arm in self._candidates()}
        even = {arm: [run for run in self._runs(arm) if not run.round % 2] for arm in self._candidates()}
        scored = [arm for arm in odd if odd[arm] and even[arm]]
        best = min(scored, key=lambda arm: fmean(run.mean_s for run in odd[arm]))
        return best, even[best]

    def runs(self) -> dict[str, list[Sample]]:
        """Return the runs of each named policy, and those of the best fixed split under ``BEST``."""
        named = {arm: runs for arm, runs in self.by_arm.items() if arm not in self.fixed}
        return {**named, BEST: self.best_fixed()[1]}

    def _candidates(self) -> list[str]:
        return [arm for arm in self.by_arm if arm in self.fixed or arm in _FIXED_TOO]

    def _runs(self, arm: str) -> list[Sample]:
        return self.by_arm.get(arm, [])


def mean_ttft_s(runs: Sequence[Sample]) -> float:
    """Return the mean over all requests."""
    return fmean(run.mean_s for run in runs)


def mean_tok_s(runs: Sequence[Sample]) -> float:
    """Return the mean tokens a second."""
    return fmean(run.tok_s for run in runs)


Figure = Callable[[Sequence[Sample]], float]


def ratio(ours: Sequence[Sample], theirs: Sequence[Sample], figure: Figure = mean_ttft_s) -> Interval:
    """Return ``figure`` of our runs over that of theirs, with the interval of resampled runs."""
    draws = sorted(ratio_draws(ours, theirs, figure))
    return Interval(figure(ours) / figure(theirs), *_middle(draws))


def ratio_draws(
    ours: Sequence[Sample], theirs: Sequence[Sample], figure: Figure = mean_ttft_s
) -> list[float]:
    """Return that ratio for many resamplings, always the same ones."""
    dice = random.Random(2026)  # noqa: S311  not a secret
    return [
        figure(dice.choices(ours, k=len(ours))) / figure(dice.choices(theirs, k=len(theirs)))
        for _ in range(_RESAMPLES)
    ]


def mean_of(pairs: Sequence[tuple[Sequence[Sample], Sequence[Sample]]]) -> Interval:
    """Return the mean over cells of our mean TTFT over theirs, with its interval."""
    values = [mean_ttft_s(ours) / mean_ttft_s(theirs) for ours, theirs in pairs]
    draws = [ratio_draws(ours, theirs) for ours, theirs in pairs]
    means = sorted(fmean(drawn) for drawn in zip(*draws, strict=True))
    return Interval(fmean(values), *_middle(means))


def p99_over(cells: Sequence[Mapping[str, Sequence[Sample]]], ours: str, theirs: str) -> tuple[float, int]:
    """Return the 99th percentile of our TTFTs over that of theirs, pooled over cells; and how many are ours.

    Cells differ in length, so each TTFT counts as a multiple of their mean in its cell, of the request
    that came as early in its batch.
    """
    pooled: dict[str, list[float]] = {ours: [], theirs: []}
    for cell in cells:
        usual_s = [fmean(ttfts) for ttfts in zip(*(sorted(run.ttft_s) for run in cell[theirs]), strict=True)]
        for arm, values in pooled.items():
            for run in cell[arm]:
                pairs = zip(sorted(run.ttft_s), usual_s, strict=True)
                values.extend(ttft_s / mean_s for ttft_s, mean_s in pairs)
    return percentile(pooled[ours], 0.99) / percentile(pooled[theirs], 0.99), len(pooled[ours])


def percentile(values: Sequence[float], share: float) -> float:
    """Return the least value that ``share`` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _middle(draws: Sequence[float]) -> tuple[float, float]:
    return percentile(draws, 0.025), percentile(draws, 0.975)
