"""Removes what has expired, and tries again what could not be written, while nobody asks for anything."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Thread
from weakref import WeakMethod

from kvstore.clock import Clock
from kvstore.index import ResidencyIndex
from kvstore.placement import Placement

_log = logging.getLogger(__name__)

_PERIOD_S = 0.5
_PAUSE_S = 0.001


class Sweeper:
    """Looks twice a second whether blocks are due, on a thread, and lets others pass between a few of them.

    ``on_over_in_pool`` is called on it while the engine's own pool has blocks whose time is over. The thread
    ends with ``stop``, or when nobody has the store any more.
    """

    def __init__(self, placement: Placement, index: ResidencyIndex, clock: Clock) -> None:
        self.on_over_in_pool: Callable[[], None] = _nothing
        self._placement = placement
        self._index = index
        self._clock = clock
        self._stopping = Event()
        self._num_failed = 0
        sweep = WeakMethod(self._attempt)
        Thread(target=_run, args=(sweep, self._stopping), name="sweeper", daemon=True).start()

    def sweep(self) -> bool:
        """Remove a few blocks whose time is over; says whether there may be more."""
        if limited := self._index.take_limited():
            self._placement.rewrite_headers(limited)
        num_removed = self._placement.remove_due(self._clock.wall_ms())
        if not num_removed:
            self._placement.retry_headers()
        if self._index.over_in_pool():
            self.on_over_in_pool()
        return num_removed > 0

    def _attempt(self) -> bool:
        try:
            return self.sweep()
        except Exception:  # noqa: BLE001 - whatever a plugin raises, what is due next must go as well
            self._num_failed += 1
            if self._num_failed == 1:
                _log.exception("what has expired could not be removed; it is tried again")
            return False

    def stop(self) -> None:
        """Ask it to end; does not wait."""
        self._stopping.set()


def _run(sweep: WeakMethod[Callable[[], bool]], stopping: Event) -> None:
    pause_s = _PERIOD_S
    while not stopping.wait(pause_s):
        sweep_some = sweep()
        if sweep_some is None:
            return
        pause_s = _PAUSE_S if sweep_some() else _PERIOD_S
        del sweep_some


def _nothing() -> None:
    """Nobody has a pool."""
