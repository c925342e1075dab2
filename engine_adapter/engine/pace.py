"""How much prefill one step takes in, where earlier requests wait for the step's end."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable

from engine_adapter.engine.sequence import Sequence
from policies.cost_model import ComputeCost, Work

# A step with prefill in it lasts at most so many times as long as one that decodes alone.
_MOST_STRETCH = 4.0
_LEAST_TOKENS = 16
# A step that is cut computes at least this part of what it could.
_LEAST_SHARE = 0.125
_MOST_STEPS_WAITED = 2.0


def decoding(running: Iterable[Sequence]) -> Work:
    """Return what a step computes for those of ``running`` that decode."""
    contexts = [len(sequence.tokens) for sequence in running if sequence.is_decoding]
    return Work(0, 0.0, len(contexts), sum(contexts))


def calm_s(cost: ComputeCost | None, beside: Work) -> float:
    """Return how long the prefill of a step may take ``beside`` sequences that decode."""
    if cost is None or not beside.decodes:
        return math.inf
    return (_MOST_STRETCH - 1) * cost.of(beside)


class Pace:
    """Decides, sequence after sequence in the order in which they are served, how far each is computed.

    ::

        step       S1 ═════════╗ S2 ═══════════════════╗
        S1's loads <═══════════╝ here S1 could go on, and waits for S2

    A chunk delays those before it whose first token comes at the end of the step, or who could go on
    before it. Left out, all from it on may be delayed by what a step costs for itself. The lesser loss
    wins, but nobody waits for others much longer than a step costs: who came first should be served as
    if it were alone. Where nothing else is in the step, at least a block is computed.
    Made for one step; times in seconds, from its beginning.

    Those who decode wait for each step: beside them the prefill takes ``most_s`` at most, and a longer one
    is cut into steps of equal length.
    """

    def __init__(self, cost: ComputeCost | None, block_tokens: int, most_s: float = math.inf) -> None:
        """Without a ``cost`` nothing is limited."""
        self._cost = cost
        self._block_tokens = block_tokens
        self._most_s = most_s
        self._took_s = 0.0
        self._is_served = False
        self._ready_s: list[float] = []

    def end(self, start: int, end: int, num_behind: int) -> int:
        """Return how far to compute from ``start``, up to ``end``, the first of ``num_behind`` sequences.

        ``start`` itself means that it has to wait.
        """
        cost = self._cost
        if cost is None or end <= start:
            return end
        end = self._calm_end(cost, start, end)
        chunk_s = cost.marginal_s(start, end)
        ends_s = self._took_s + chunk_s
        lost_s = sum(max(0.0, ends_s - max(ready_s, self._took_s)) for ready_s in self._ready_s)
        longest_s = max((ends_s - ready_s for ready_s in self._ready_s), default=0.0)
        if lost_s <= num_behind * cost.step_s and longest_s <= _MOST_STEPS_WAITED * cost.step_s:
            return end
        return start if self._is_served else self._cut(cost, start, end)

    def add(self, start: int, end: int, *, is_served: bool) -> None:
        """Note a chunk of this step; ``is_served``: the first token of its sequence comes with it."""
        if self._cost is not None:
            self._took_s += self._cost.marginal_s(start, end)
        if is_served:
            self._is_served = True
            self._ready_s.append(self._took_s)

    def awaits(self, loaded_s: float) -> None:
        """Note that the last sequence could go on ``loaded_s`` from now, when its loads have ended."""
        self._ready_s.append(max(loaded_s, self._took_s))

    def _calm_end(self, cost: ComputeCost, start: int, end: int) -> int:
        """Return how far to compute lest those who decode wait too long."""
        whole_s = cost.marginal_s(start, end)
        if self._took_s + whole_s <= self._most_s:
            return end
        num_steps = math.ceil(whole_s / self._most_s) if self._most_s else 1
        share_s = min(whole_s / num_steps, self._most_s - self._took_s)
        least = 0 if self._took_s else _LEAST_TOKENS
        return max(_fitting(cost, start, end, share_s), min(end, start + least))

    def _cut(self, cost: ComputeCost, start: int, end: int) -> int:
        """Return the end of the blocks that are computed when the first loads end, or of a short step."""
        least_s = max(cost.step_s, _LEAST_SHARE * cost.marginal_s(start, end))
        rest_s = max(min(self._ready_s), least_s) - self._took_s
        if rest_s <= 0:
            return start
        fits = _fitting(cost, start, end, rest_s)
        whole = max(start, fits - fits % self._block_tokens)
        if whole == start and not self._took_s:
            return min(end, start + self._block_tokens - start % self._block_tokens)
        return whole


def _fitting(cost: ComputeCost, start: int, end: int, rest_s: float) -> int:
    """Return how far computing comes from ``start`` in ``rest_s``, at most to ``end``."""
    lengths = range(start + 1, end + 1)
    return start + bisect_right(lengths, rest_s, key=lambda until: cost.marginal_s(start, until))
