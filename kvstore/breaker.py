"""A circuit breaker: after repeated faults a tier is left alone, then tried again now and then."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Breaker:
    """Opens after ``threshold`` faults in a row; half-open for one trial after ``cooldown_s``.

    Not thread-safe. ``reason`` is the last fault, kept until a success.
    """

    threshold: int = 3
    cooldown_s: float = 5.0
    num_faults_in_a_row: int = 0
    opened_at_s: float | None = None
    reason: str = ""

    def allows(self, now_s: float) -> bool:
        """Say whether an attempt may be made; taking the trial of a half-open breaker re-arms it."""
        if self.opened_at_s is None:
            return True
        if now_s - self.opened_at_s < self.cooldown_s:
            return False
        self.opened_at_s = now_s
        return True

    def is_open(self, now_s: float) -> bool:
        """Say whether attempts are refused right now, without taking the trial."""
        return self.opened_at_s is not None and now_s - self.opened_at_s < self.cooldown_s

    def succeeded(self) -> None:
        """Note an attempt that went well: close."""
        self.num_faults_in_a_row = 0
        self.opened_at_s = None
        self.reason = ""

    def failed(self, reason: str, now_s: float, *, opens: bool = False) -> bool:
        """Note an attempt that failed for ``reason``. Returns whether this opened the breaker.

        ``opens``: this fault alone is enough.
        """
        self.reason = reason
        self.num_faults_in_a_row += 1
        if not opens and self.num_faults_in_a_row < self.threshold and self.opened_at_s is None:
            return False
        was_closed = self.opened_at_s is None
        self.opened_at_s = now_s
        return was_closed
