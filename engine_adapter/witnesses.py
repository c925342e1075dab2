"""Mode verify: which hits are computed all the same, and what is compared once that has come."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

_MOST = 4096


class EverySoMany:
    """Chooses a share of what comes, evenly. For one thread."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._owed = 0.0

    def chooses(self) -> bool:
        """Say whether the next one is chosen."""
        self._owed += self._share
        if self._owed < 1:
            return False
        self._owed -= 1
        return True


class Witnesses:
    """Chooses a share of the prompts, and remembers which of their blocks are to be compared. Thread-safe."""

    def __init__(self, share: float) -> None:
        self._chosen = EverySoMany(share)
        self._keys: OrderedDict[bytes, None] = OrderedDict()
        self._lock = Lock()

    def summon(self, keys: Iterable[bytes]) -> bool:
        """Say whether a prompt with these blocks is to be computed again.

        Of too many blocks the oldest are forgotten.
        """
        with self._lock:
            if not self._chosen.chooses():
                return False
            self._keys.update(dict.fromkeys(keys))
            while len(self._keys) > _MOST:
                self._keys.popitem(last=False)
            return True

    def take(self, key: bytes) -> bool:
        """Say whether a block is to be compared, once."""
        with self._lock:
            return self._keys.pop(key, self) is not self
