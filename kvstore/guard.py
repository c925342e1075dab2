"""One direction of a tier's traffic: whatever a medium raises ends here, counted and told to the breaker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from kvstore.breaker import Breaker
from kvstore.clock import Clock
from kvstore.errors import one_line
from kvstore.statistics import Count, Counters

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Guard:
    """A breaker with its lock, its clock and the counts of its tier. Thread-safe.

    ``what`` it guards is told in the log when attempts stop, and when they go on.
    """

    def __init__(self, what: str, breaker: Breaker, counters: Counters, clock: Clock) -> None:
        self._what = what
        self._breaker = breaker
        self._counters = counters
        self._clock = clock
        self._lock = Lock()

    def is_open(self) -> bool:
        """Say whether attempts are refused right now, without taking the trial."""
        return self._breaker.is_open(self._clock.monotonic_s())

    def may(self) -> bool:
        """Say whether an attempt may be made now; takes the trial of a half-open breaker."""
        with self._lock:
            return self._breaker.allows(self._clock.monotonic_s())

    def attempt(self, call: Callable[[], T], count: str) -> T | None:
        """Return what ``call`` returns, or ``None`` after counting what it raised."""
        try:
            value = call()
        except Exception as error:  # noqa: BLE001  a plugin may raise anything; a fault is counted, not told
            self.failed(count, error)
            return None
        self.succeeded()
        return value

    def succeeded(self) -> None:
        """Note an attempt that went well."""
        with self._lock:
            was_open = self._breaker.opened_at_s is not None
            self._breaker.succeeded()
        if was_open:
            _log.warning("%s go on", self._what)

    def failed(self, count: str, error: Exception, *, opens: bool = False) -> None:
        """Note an attempt that failed; ``opens``: once is enough to make no more for a while."""
        self._counters.add(count)
        with self._lock:
            has_opened = self._breaker.failed(one_line(error), self._clock.monotonic_s(), opens=opens)
        if has_opened:
            self._counters.add(Count.BREAKER_OPENINGS)
            _log.warning("%s are paused: %s", self._what, one_line(error))

    def paused_for(self) -> str:
        """Return why attempts are refused or on trial, in one line; empty when they are not."""
        with self._lock:
            return self._breaker.reason if self._breaker.opened_at_s is not None else ""
