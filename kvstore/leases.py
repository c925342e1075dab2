"""Leases: blocks held for one use, until a deadline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from threading import Lock

from kvstore.record import Record

OnReleased = Callable[[Sequence[Record]], None]


class Hit:
    """The answer to a lookup: each block's fastest tier, and a lease on all that are resident."""

    __slots__ = ("_on_released", "deadline_s", "keys", "records", "tiers")

    def __init__(
        self,
        keys: Sequence[bytes],
        tiers: tuple[str | None, ...],
        records: Sequence[Record],
        deadline_s: float,
        on_released: OnReleased,
    ) -> None:
        self.keys = keys
        self.tiers = tiers
        """The name of each key's fastest tier; ``None``: in no tier."""
        self.deadline_s = deadline_s
        """When the lease ends, on the store's monotonic clock."""
        self.records = records
        self._on_released: OnReleased | None = on_released

    @property
    def is_leased(self) -> bool:
        """Whether the blocks are still held by this hit."""
        return self._on_released is not None

    def release(self) -> None:
        """Give the lease back; idempotent."""
        on_released, self._on_released = self._on_released, None
        if on_released is not None:
            on_released(self.records)


class LeaseTable:
    """The leases that are out, by deadline. Thread-safe."""

    def __init__(self) -> None:
        self._by_deadline: list[tuple[float, int, Hit]] = []
        self._numbers = count()
        self._lock = Lock()

    def add(self, hit: Hit) -> None:
        """Remember a lease until it is released or over."""
        with self._lock:
            while self._by_deadline and not self._by_deadline[0][2].is_leased:
                heappop(self._by_deadline)
            heappush(self._by_deadline, (hit.deadline_s, next(self._numbers), hit))

    def release_overdue(self, now_s: float) -> None:
        """Give back every lease whose deadline has passed."""
        while True:
            with self._lock:
                if not self._by_deadline or self._by_deadline[0][0] > now_s:
                    return
                _, _, hit = heappop(self._by_deadline)
            hit.release()
