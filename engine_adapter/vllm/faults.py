"""Faults on vLLM's way: caught, counted, and told in the log now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

_log = logging.getLogger("vllm.prefixd")

_BETWEEN_S = 60.0

T = TypeVar("T")


class Faults:
    """Makes misses of errors. For one thread."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._told_s = float("-inf")
        self._num_untold = 0
        self._num_new = 0

    def caught(self, action: Callable[[], T], otherwise: T) -> T:
        """Return what ``action`` returns, or ``otherwise`` if it raises."""
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - whatever it is, vLLM's requests go on
            self.note(error)
            return otherwise

    def note(self, error: Exception) -> None:
        """Count an error, and log it unless one was logged a moment ago."""
        self._num_new += 1
        self._num_untold += 1
        now_s = self._now_s()
        if now_s - self._told_s >= _BETWEEN_S:
            _log.error(
                "prefixes: %d errors were made into misses; the latest", self._num_untold, exc_info=error
            )
            self._told_s, self._num_untold = now_s, 0

    def take(self) -> int:
        """Return how many there were since the last call."""
        num, self._num_new = self._num_new, 0
        return num
