"""Memory that a client fills and the server copies from: who has which part of it."""

from __future__ import annotations

from bisect import bisect_left
from threading import Condition

from kvstore.arena import slot_stride
from kvstore.errors import InvariantError


class Staging:
    """Hands out parts of ``memory``, first fit, in whole pages. Thread-safe."""

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self._free: list[tuple[int, int]] = [(0, len(memory))]  # (start, end), apart from each other
        self._used: dict[int, int] = {}
        self._changed = Condition()

    def take(self, nbytes: int, timeout_s: float = 0.0) -> int | None:
        """Return where a part of ``nbytes`` begins; waits for one. ``None``: there was none in time."""
        wanted = slot_stride(nbytes)
        with self._changed:
            self._changed.wait_for(lambda: self._first_fit(wanted) is not None, timeout_s)
            place = self._first_fit(wanted)
            if place is None:
                return None
            start, end = self._free[place]
            self._free[place : place + 1] = [(start + wanted, end)] if start + wanted < end else []
            self._used[start] = wanted
            return start

    def give_back(self, start: int) -> None:
        """Take back the part that begins at ``start``."""
        with self._changed:
            end = start + self._used.pop(start)
            place = bisect_left(self._free, (start, end))
            if place < len(self._free) and self._free[place][0] == end:
                end = self._free.pop(place)[1]
            if place and self._free[place - 1][1] == start:
                place -= 1
                start = self._free.pop(place)[0]
            self._free.insert(place, (start, end))
            self._changed.notify_all()

    def is_unused(self) -> bool:
        """Say whether nobody has any part of it."""
        return not self._used

    def wait_until_unused(self, timeout_s: float) -> bool:
        """Block until nobody has any part of it, at most ``timeout_s``; returns whether that is so."""
        with self._changed:
            return self._changed.wait_for(self.is_unused, timeout_s)

    def check(self) -> None:
        """Raise ``InvariantError`` unless free and used parts make up the whole, apart from each other."""
        with self._changed:
            used = [(start, start + nbytes) for start, nbytes in self._used.items()]
            parts = sorted([*self._free, *used])
        ends = [0, *(end for _, end in parts)]
        if [start for start, _ in parts] != ends[:-1] or ends[-1] != len(self.memory):
            raise InvariantError("staging: its parts do not make up the whole")

    def _first_fit(self, wanted: int) -> int | None:
        fits = (place for place, (start, end) in enumerate(self._free) if end - start >= wanted)
        return next(fits, None)
