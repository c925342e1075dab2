"""Which blocks a tier takes: its admission is asked, and its verdicts are kept for a moment."""

from __future__ import annotations

from collections.abc import Callable

from kvstore.clock import Clock
from kvstore.record import Record
from kvstore.seams import Admission, Offer, Verdict

_KEPT_S = 1.0  # every block of every prompt is offered, and what loading costs does not change faster


class Admitting:
    """One tier's verdicts. Thread-safe: at worst two threads ask for the same one.

    ``footprint`` turns a block's raw bytes into those it occupies there.
    """

    def __init__(
        self,
        admission: Admission,
        tier: str,
        budget_bytes: int,
        footprint: Callable[[int], int],
        clock: Clock,
    ) -> None:
        self._admission = admission
        self._tier = tier
        self._budget_bytes = budget_bytes
        self._footprint = footprint
        self._clock = clock
        self._verdicts: dict[tuple[int, int, int, int | None], Verdict] = {}
        self._ends_s = 0.0

    def verdict(self, num_tokens: int, facts: Record) -> Verdict:
        """Return what the tier says to a block of which ``num_tokens`` are filled."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._ends_s:
            self._verdicts, self._ends_s = {}, now_s + _KEPT_S
        offered = num_tokens, facts.block_tokens, facts.raw_bytes, facts.first_token
        verdict = self._verdicts.get(offered)
        if verdict is None:
            verdict = self._verdicts[offered] = self._ask(num_tokens, facts)
        return verdict

    def _ask(self, num_tokens: int, facts: Record) -> Verdict:
        footprint_bytes = self._footprint(facts.raw_bytes)
        return self._admission(
            Offer(
                self._tier,
                num_tokens,
                facts.block_tokens,
                footprint_bytes,
                self._budget_bytes,
                facts.first_token,
            )
        )
