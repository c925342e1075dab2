"""Removes what has expired, and tries again what could not be written, while nobody asks for anything."""

from __future__ import annotations

from threading import Event, Thread
from weakref import ref

from kvstore.clock import Clock
from kvstore.placement import Placement

_PERIOD_S = 0.5
_PAUSE_S = 0.001


class Sweeper:
    """A thread that looks twice a second whether blocks are due, and lets others pass between a few of them.

    It ends with ``stop``, or when nobody has the store any more.
    """

    def __init__(self, placement: Placement, clock: Clock) -> None:
        self._stopping = Event()
        watched = ref(placement)
        Thread(target=_sweep, args=(watched, clock, self._stopping), name="sweeper", daemon=True).start()

    def stop(self) -> None:
        """Ask it to end; does not wait."""
        self._stopping.set()


def _sweep(watched: ref[Placement], clock: Clock, stopping: Event) -> None:
    pause_s = _PERIOD_S
    while not stopping.wait(pause_s):
        placement = watched()
        if placement is None:
            return
        num_removed = placement.remove_due(clock.wall_ms())
        if not num_removed:
            placement.retry_headers()
        pause_s = _PAUSE_S if num_removed else _PERIOD_S
        del placement
