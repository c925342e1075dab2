"""Costs that are believed, whatever is measured, so that a plan is known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine_adapter.engine.costs import CostBook, KnownCosts
from policies.cost_model import ComputeCost
from policies.lines import LineState


class _Believing(CostBook):
    def __init__(
        self, block_bytes: int, memory_tier: str | None, token_s: float, lines: Mapping[str, LineState]
    ) -> None:
        super().__init__(block_bytes, memory_tier, KnownCosts((), lines))
        self._token_s = token_s

    def compute(self) -> ComputeCost:
        return ComputeCost(0.0, self._token_s, 0.0)


def believing(
    token_s: float, lines: Mapping[str, LineState] | None = None
) -> Callable[[int, str | None], CostBook]:
    """Return a maker of books in which a token takes ``token_s`` to compute, and lines begin as given."""
    return lambda block_bytes, memory_tier: _Believing(block_bytes, memory_tier, token_s, lines or {})


QUICK = LineState(latency_s=1e-4, bytes_per_s=1e9)
"""A line on which a block of the tiny model takes microseconds."""
EVEN = LineState(latency_s=1e-4, bytes_per_s=3 * 2 * 8 * 2 * 12 * 4 / 8e-3)
"""A line on which a block takes as long as 8 tokens of 1 ms."""
