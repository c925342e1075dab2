"""Chunks that LMCache has locked: a lease of ours ends when all it was for are unlocked."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

from kvstore.leases import Hit


class Locks:
    """Leases by LMCache's keys. One may be locked several times, and is unlocked once for each. Thread-safe.

    A lease that nobody ends is over at its deadline, in the store itself.
    """

    def __init__(self) -> None:
        self._locks: dict[Hashable, deque[_Lock]] = {}
        self._lock = Lock()

    def add(self, hit: Hit, keys: Sequence[Hashable]) -> None:
        """Lock all that ``hit`` has found; ``keys`` are LMCache's, one for each of the hit's."""
        found = [(key, tier) for key, tier in zip(keys, hit.tiers, strict=True) if tier is not None]
        if not found:
            hit.release()
            return
        lease = _Lease(hit, len(found))
        with self._lock:
            for key, tier in found:
                self._locks.setdefault(key, deque()).append(_Lock(lease, tier))

    def tier_of(self, key: Hashable) -> str | None:
        """Return the tier in which a locked chunk was found; ``None``: it is not locked."""
        with self._lock:
            locks = self._locks.get(key)
            return locks[-1].tier if locks else None

    def unlock(self, keys: Iterable[Hashable]) -> None:
        """Unlock each key once; those that are not locked are passed over."""
        over = list[Hit]()
        with self._lock:
            for key in keys:
                locks = self._locks.get(key)
                if not locks:
                    continue
                lease = locks.popleft().lease
                if not locks:
                    del self._locks[key]
                lease.num_left -= 1
                if not lease.num_left:
                    over.append(lease.hit)
        for hit in over:
            hit.release()

    def end(self) -> None:
        """Unlock everything."""
        with self._lock:
            hits = [lock.lease.hit for locks in self._locks.values() for lock in locks]
            self._locks.clear()
        for hit in hits:
            hit.release()

    def __len__(self) -> int:
        return len(self._locks)


@dataclass(slots=True)
class _Lease:
    hit: Hit
    num_left: int


class _Lock(NamedTuple):
    lease: _Lease
    tier: str
