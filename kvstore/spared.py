"""Blocks that somebody who waits is going to need: they go last, and are never held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from threading import Lock
from typing import TypeVar

from kvstore.seams import IsHeld

T = TypeVar("T")


class Spared:
    """Keys, each spared as often as it was named and not taken back. Thread-safe."""

    def __init__(self) -> None:
        self._num_times: Counter[bytes] = Counter()
        self._lock = Lock()

    def spare(self, keys: Iterable[bytes]) -> None:
        """Let blocks go last from now on."""
        with self._lock:
            self._num_times.update(iter(keys))  # of a mapping, too, the keys count

    def unspare(self, keys: Iterable[bytes]) -> None:
        """Take that back, once for each key."""
        with self._lock:
            for key in keys:
                self._num_times[key] -= 1
                if self._num_times[key] <= 0:
                    del self._num_times[key]

    def choose(self, how: Callable[[IsHeld], T | None], is_held: IsHeld) -> T | None:
        """Return what ``how`` chooses with spared blocks held as well; where that is nothing, without."""
        if not self._num_times:
            return how(is_held)
        chosen = how(self.held_as_well(is_held))
        return how(is_held) if chosen is None else chosen

    def held_as_well(self, is_held: IsHeld) -> IsHeld:
        """Say of spared blocks, too, that they are held."""
        return lambda key: key in self._num_times or is_held(key)

    def __len__(self) -> int:
        return len(self._num_times)

    def __contains__(self, key: bytes) -> bool:
        return key in self._num_times
