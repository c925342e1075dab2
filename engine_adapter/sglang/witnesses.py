"""Prompts that mode verify has computed again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

_MOST = 4096


class Witnesses:
    """Chooses a share of the prompts, and remembers which of their pages are to be compared. Thread-safe."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._owed = 0.0
        self._keys: OrderedDict[bytes, None] = OrderedDict()
        self._lock = Lock()

    def summon(self, keys: Iterable[bytes]) -> bool:
        """Say whether a prompt with these pages is to be computed again: every so many, as the share says."""
        with self._lock:
            self._owed += self._share
            if self._owed < 1:
                return False
            self._owed -= 1
            self._keys.update(dict.fromkeys(keys))
            while len(self._keys) > _MOST:
                self._keys.popitem(last=False)
            return True

    def take(self, key: bytes) -> bool:
        """Say whether a page is to be compared, once."""
        with self._lock:
            return self._keys.pop(key, self) is not self
