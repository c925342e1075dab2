"""Ends leases and blocks whose time is over, and tries again what could not be written, unasked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Thread
from weakref import WeakMethod

from kvstore.clock import Clock
from kvstore.errors import one_line
from kvstore.index import ResidencyIndex
from kvstore.leases import LeaseTable
from kvstore.placement import Placement
from kvstore.statistics import State, TierHealth

_log = logging.getLogger(__name__)

_PERIOD_S = 0.5
_PAUSE_S = 0.001


class Sweeper:
    """Looks twice a second whether blocks are due, on a thread, and lets others pass between a few of them.

    ``on_over_in_pool`` is called on it while the engine's own pool has blocks whose time is over. The thread
    ends with ``stop``, or when nobody has the store any more.
    """

    def __init__(self, placement: Placement, index: ResidencyIndex, leases: LeaseTable, clock: Clock) -> None:
        self.on_over_in_pool: Callable[[], None] = _nothing
        self._placement = placement
        self._index = index
        self._leases = leases
        self._clock = clock
        self._stopping = Event()
        self._fault = ""
        sweep = WeakMethod(self._attempt)
        self._thread = Thread(target=_run, args=(sweep, self._stopping), name="sweeper", daemon=True)
        self._thread.start()

    def health(self) -> TierHealth:
        """Say whether what is due goes."""
        if not self._thread.is_alive() and not self._stopping.is_set():
            return TierHealth(
                State.UNHEALTHY, "what has expired stays, its thread has died: restart the server"
            )
        reason = f"what has expired may stay: {self._fault}" if self._fault else ""
        return TierHealth(State.DEGRADED if reason else State.OK, reason)

    def sweep(self) -> bool:
        """End leases, and remove a few blocks, whose time is over; says whether there may be more blocks."""
        self._leases.release_overdue(self._clock.monotonic_s())
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
            is_more = self.sweep()
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises, what is due next must go as well
            if not self._fault:
                _log.exception("what has expired could not be removed; it is tried again")
            self._fault = one_line(error)
            return False
        self._fault = ""
        return is_more

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
