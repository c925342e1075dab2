"""Faults on a foreign engine's way: caught, counted, and told in the log now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

_BETWEEN_S = 60.0

T = TypeVar("T")


class Faults:
    """Makes misses of errors. Thread-safe.

    ``num`` counts them since the start. ``now_s`` tells the time, by which one is logged a minute at most.
    """

    def __init__(self, log: logging.Logger, now_s: Callable[[], float] = time.monotonic) -> None:
        self.num = 0
        self._num_taken = 0
        self._log = log
        self._now_s = now_s
        self._told_s = float("-inf")
        self._num_untold = 0
        self._lock = Lock()

    def caught(self, action: Callable[[], T], otherwise: T) -> T:
        """Return what ``action`` returns, or ``otherwise`` if it raises."""
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine's requests go on
            self.note(error)
            return otherwise

    def note(self, error: Exception) -> None:
        """Count an error, and log it unless one was logged a moment ago."""
        with self._lock:
            self.num += 1
            self._num_untold += 1
            now_s = self._now_s()
            if now_s - self._told_s < _BETWEEN_S:
                return
            num, self._num_untold, self._told_s = self._num_untold, 0, now_s
        self._log.error("prefixd: %d errors were made into misses; the latest", num, exc_info=error)

    def take(self) -> int:
        """Return how many there were since the last call."""
        with self._lock:
            num, self._num_taken = self.num - self._num_taken, self.num
        return num
