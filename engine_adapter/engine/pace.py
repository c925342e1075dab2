"""How much prefill one step takes in, where earlier requests wait for the step's end."""

from __future__ import annotations

from bisect import bisect_right

from policies.cost_model import ComputeCost


class Pace:
    """Decides, sequence after sequence in the order in which they are served, how far each is computed.

    ::

        step       S1 ═════════╗ S2 ═══════════════════╗
        S1's loads <═══════════╝ here S1 could go on, and waits for S2

    A chunk delays those before it whose first token comes at the end of the step, or whose loads end
    before it. Left out, all from it on are delayed by what a step costs for itself. The lesser loss wins.
    Made for one step; times in seconds, from its beginning.
    """

    def __init__(self, cost: ComputeCost | None, block_tokens: int) -> None:
        """Without a ``cost`` nothing is limited."""
        self._cost = cost
        self._block_tokens = block_tokens
        self._took_s = 0.0
        self._num_served = 0
        self._loaded_s: list[float] = []

    def end(self, start: int, end: int, num_behind: int) -> int:
        """Return how far to compute from ``start``, up to ``end``, the first of ``num_behind`` sequences."""
        cost = self._cost
        if cost is None or end <= start:
            return end
        chunk_s = cost.marginal_s(start, end)
        if self._lost_s(chunk_s) <= num_behind * cost.step_s:
            return end
        return start if self._num_served else self._cut(cost, start, end)

    def add(self, start: int, end: int, *, is_served: bool) -> None:
        """Note a chunk of this step; ``is_served``: the first token of its sequence comes with it."""
        if self._cost is not None:
            self._took_s += self._cost.marginal_s(start, end)
        self._num_served += is_served

    def awaits(self, loaded_s: float) -> None:
        """Note that a sequence cannot go on before its loads have ended, ``loaded_s`` from now."""
        self._loaded_s.append(loaded_s)

    def _lost_s(self, chunk_s: float) -> float:
        ends_s = self._took_s + chunk_s
        lost_s = (ends_s - max(loaded_s, self._took_s) for loaded_s in self._loaded_s)
        return self._num_served * chunk_s + sum(late_s for late_s in lost_s if late_s > 0)

    def _cut(self, cost: ComputeCost, start: int, end: int) -> int:
        """Return the end of the blocks that are computed when the first loads end, or of a short step."""
        rest_s = max(min(self._loaded_s), cost.step_s) - self._took_s
        chunks_s = [cost.marginal_s(start, until) for until in range(start, end + 1)]
        fits = start + bisect_right(chunks_s, rest_s) - 1
        whole = max(start, fits - fits % self._block_tokens)
        if whole == start and not self._took_s:
            return min(end, start + self._block_tokens - start % self._block_tokens)
        return whole
