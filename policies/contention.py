"""What loading takes from computing: both may need the same processor."""

from __future__ import annotations

from collections import deque
from statistics import median

_LAST = 9
_LEAST_BYTES = 1 << 20
_MOST_STRETCH = 3.0


class Contention:
    """Learns how many seconds each byte that arrives beside a step takes from it. Not thread-safe.

    A step beside loads is compared with what it would have taken alone. A slow step receives more bytes
    for lasting longer, so how long it took says nothing about contention by itself; that it took longer
    than predicted does, and of the last few the median.
    """

    def __init__(self, byte_s: float = 0.0) -> None:
        """``byte_s`` is what was known before."""
        self._last = deque([byte_s], maxlen=_LAST)

    @property
    def byte_s(self) -> float:
        """Seconds that each byte takes; 0 where loading is free."""
        return max(0.0, median(self._last))

    @staticmethod
    def is_beside_loads(loaded_bytes: int) -> bool:
        """Say whether so much has arrived during a step that it tells nothing of a step alone."""
        return loaded_bytes >= _LEAST_BYTES

    def learn(self, took_s: float, alone_s: float, loaded_bytes: int) -> None:
        """Take in a step of ``took_s`` that was predicted to take ``alone_s`` without loads beside it."""
        lost_s = min(took_s, _MOST_STRETCH * alone_s) - alone_s
        self._last.append(lost_s / loaded_bytes)
