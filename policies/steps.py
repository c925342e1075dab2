"""What a step of the engine costs, learnt from every step that is made.

Two things are learnt apart: the shape of the cost, from steps of all kinds over a long time, and how
fast the machine is just now, from the last few that had prefill in them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from policies.cost_model import ComputeCost, Work

_SAMPLES_OF_A_KIND = 5
_MOST_KINDS = 128
_LAST_PREFILLS = 7
_STEPS_BETWEEN_FITS = 16
_ROUNDS = 200
_LEAST_S = 1e-9


@dataclass(frozen=True, slots=True)
class Step:
    """One step that was made, and the seconds that it took."""

    work: Work
    took_s: float


class StepCosts:
    """Fits ``ComputeCost`` to steps. Not thread-safe.

    Steps are sorted into kinds (by tokens, how far back these attend, and decoding sequences); of each
    kind the last few are kept and their median counts, so that a kind seen often does not outvote the
    others and one slow step changes nothing.
    """

    def __init__(self, known: Iterable[Step] = ()) -> None:
        self._kinds: dict[tuple[int, int, int], deque[Step]] = {}
        self._last_prefills: deque[Step] = deque(maxlen=_LAST_PREFILLS)
        self._shape: ComputeCost | None = None
        self._num_unfitted = 0
        self.learn(known)
        self._last_prefills.clear()

    def learn(self, steps: Iterable[Step]) -> None:
        """Take steps in."""
        for step in steps:
            if step.took_s <= 0 or not (step.work.tokens or step.work.decodes):
                continue
            kind = _kind(step.work)
            kept = self._kinds.pop(kind, None)
            self._num_unfitted += 1 if kept else _STEPS_BETWEEN_FITS
            kept = kept or deque(maxlen=_SAMPLES_OF_A_KIND)
            kept.append(step)
            self._kinds[kind] = kept  # the kind used last stands last
            if step.work.tokens:
                self._last_prefills.append(step)
        while len(self._kinds) > _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]

    def cost(self) -> ComputeCost | None:
        """Return what steps cost now; ``None`` before the first one."""
        if not self._kinds:
            return None
        shape = self._shape
        if shape is None or self._num_unfitted >= _STEPS_BETWEEN_FITS:
            shape = self._shape = _fit(self.typical())
            self._num_unfitted = 0
        ratios = [step.took_s / max(shape.of(step.work), _LEAST_S) for step in self._last_prefills]
        return shape.scaled(median(ratios)) if ratios else shape

    def typical(self) -> list[Step]:
        """Return one step of each kind, to be kept between runs."""
        return [_typical(kept) for kept in self._kinds.values()]


def _kind(work: Work) -> tuple[int, int, int]:
    reach = work.attended / work.tokens if work.tokens else work.context / max(1, work.decodes)
    return _octave(work.tokens), _octave(reach), _octave(work.decodes)


def _octave(value: float) -> int:
    return round(2 * math.log2(value)) if value >= 1 else -1


def _typical(kept: Sequence[Step]) -> Step:
    return sorted(kept, key=lambda step: step.took_s)[len(kept) // 2]


def _fit(steps: Sequence[Step]) -> ComputeCost:
    """Return the non-negative least squares fit of relative errors, by coordinate descent."""
    rows = [[value / step.took_s for value in _features(step.work)] for step in steps]
    num = len(rows[0])
    gram = [[sum(row[i] * row[j] for row in rows) for j in range(num)] for i in range(num)]
    target = [sum(row[i] for row in rows) for i in range(num)]
    weights = [0.0] * num
    for _ in range(_ROUNDS):
        for i in range(num):
            if gram[i][i] > 0:
                rest = target[i] - sum(gram[i][j] * weights[j] for j in range(num) if j != i)
                weights[i] = max(0.0, rest / gram[i][i])
    return ComputeCost(*weights)


def _features(work: Work) -> tuple[float, ...]:
    return 1.0, float(work.tokens), work.attended, float(work.decodes), float(work.context)
