"""Holds a foreign engine's bursts to what media take: its threads may wait, as a decode step may not."""

from __future__ import annotations

from threading import Lock

from kvstore.interface import BlockStore

_MOST_AHEAD = 48  # a tier queues 256, and several threads may each be as far ahead
_WAIT_S = 1.0


class WritePace:
    """Counts blocks that were stored, and lets their media catch up now and then. Thread-safe.

    A store keeps nobody waiting: what a tier's queue has no room for is dropped, and is found no more once it
    has left memory.
    """

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._num_ahead = 0
        self._lock = Lock()

    def keep(self) -> None:
        """Note that a block was stored; waits a moment for the media after so many."""
        with self._lock:
            self._num_ahead += 1
            is_due = self._num_ahead >= _MOST_AHEAD
            if is_due:
                self._num_ahead = 0
        if is_due:
            self._store.flush(_WAIT_S)
