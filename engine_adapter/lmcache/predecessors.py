"""Which chunk stands before which, learnt from lookups: LMCache's keys do not say."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from threading import Lock

_MOST = 1 << 16


class Predecessors:
    """The chunk before each of those that were looked up lately. Thread-safe.

    LMCache looks up all of a prompt before its engine computes it, so that a chunk's place is known when it
    is stored: leaves go first then, and what follows a wrong chunk is kept out with it.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._before: OrderedDict[bytes, bytes] = OrderedDict()
        self._most = most
        self._lock = Lock()

    def learn(self, prefix: Sequence[bytes]) -> None:
        """Take in a prompt's chunks, in order; of too many the oldest are forgotten."""
        with self._lock:
            for before, key in pairwise(prefix):
                self._before[key] = before
                self._before.move_to_end(key)
            while len(self._before) > self._most:
                self._before.popitem(last=False)

    def of(self, key: bytes) -> bytes:
        """Return the chunk before this one; empty: it is the first, or nothing is known."""
        return self._before.get(key, b"")
