"""A thread that reads what the history is made of, again and again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Thread

from api.history import History, Reading
from kvstore.clock import Clock

_log = logging.getLogger(__name__)

EVERY_S = 5.0


class Sampler:
    """Adds a reading to ``history`` at the start and every few seconds, until it is closed.

    What reading raises is logged once, and costs that sample.
    """

    def __init__(
        self, history: History, read: Callable[[], Reading], clock: Clock, every_s: float = EVERY_S
    ) -> None:
        self._history = history
        self._read = read
        self._clock = clock
        self._every_s = every_s
        self._has_failed = False
        self._is_closed = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin, also again after it was closed."""
        self.close()
        self._is_closed = Event()
        self._thread = Thread(target=self._run, args=(self._is_closed,), name="history", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End, within a moment; idempotent, and harmless where it has not begun."""
        self._is_closed.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self, is_closed: Event) -> None:
        while not is_closed.is_set():
            self._sample()
            is_closed.wait(self._every_s)

    def _sample(self) -> None:
        try:
            self._history.add(self._read(), self._clock.wall_ms())
        except Exception:  # noqa: BLE001 - a server goes on without its history
            if not self._has_failed:
                _log.exception("the history could not be read")
            self._has_failed = True
