"""What loading from each tier costs now, learnt from every chunk that is loaded."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

from policies.cost_model import LoadCost
from policies.lines import Arrival, Line


class Asked(NamedTuple):
    """A chunk that was asked for."""

    tier: str
    nbytes: int
    asked_s: float
    token: object


class LoadCosts:
    """A line for each tier. Thread-safe; ``now_s`` is a monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._lines: dict[str, Line] = {}
        self._lock = Lock()

    def ask(self, tier: str, nbytes: int) -> Asked:
        """Note that a chunk is asked for."""
        asked = Asked(tier, nbytes, self._now_s(), object())
        with self._lock:
            self._lines.setdefault(tier, Line()).asked(asked.token, nbytes, asked.asked_s)
        return asked

    def end(self, asked: Asked, *, has_arrived: bool) -> None:
        """Note that a chunk has come, or will not."""
        with self._lock:
            line, now_s = self._lines[asked.tier], self._now_s()
            if has_arrived:
                line.ended(asked.token)
                line.learn([Arrival(asked.asked_s, now_s, asked.nbytes)])
            else:
                line.given_up(asked.token, now_s)

    def loads(self) -> dict[str, LoadCost]:
        """Return what the next loads cost, of tiers that are known."""
        with self._lock:
            now_s = self._now_s()
            costs = {tier: line.cost(now_s) for tier, line in self._lines.items()}
        return {tier: cost for tier, cost in costs.items() if cost is not None}

    def stale(self) -> frozenset[str]:
        """Return the tiers of which nothing was heard for a while."""
        with self._lock:
            now_s = self._now_s()
            return frozenset(tier for tier, line in self._lines.items() if line.is_stale(now_s))
