"""The index as its operator sees it: all blocks, a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import TypeVar

from kvstore.keeping import KeepingIndex
from kvstore.record import FOREVER_MS, Record

T = TypeVar("T")

_A_FEW = 256
"""Looked at under one lock: well under a millisecond."""


class OperatedIndex(KeepingIndex):
    """What ``KeepingIndex`` knows, for whoever goes over all of it. Thread-safe."""

    def survey(self, look: Callable[[Record], T | None], keys: Collection[bytes] | None = None) -> list[T]:
        """Return what ``look`` makes of all blocks (or of ``keys``, those that are known), but for ``None``.

        ``look`` is called under the lock, which is given back now and then: it must be quick, and change
        nothing. What comes meanwhile may be left out, what goes as well.
        """
        with self._lock:
            self._lives.settle()
            left = iter(list(self._records) if keys is None else keys)
        found: list[T] = []
        while some := list(islice(left, _A_FEW)):
            with self._lock:
                known = (record for key in some if (record := self._records.get(key)) is not None)
                found += [seen for record in known if (seen := look(record)) is not None]
        return found

    def alive_in(self, record: Record, now_ms: int) -> tuple[int, int]:
        """Return the tiers that have a block alive, and in a form that cannot be read, as masks.

        The caller has the lock, as in ``survey``; so it is for the methods below.
        """
        living = ~self._lives.over(record, now_ms)
        return record.tiers & living, record.unreadable & living

    def tenant_of(self, namespace: bytes) -> str | None:
        """Return the tenant of a namespace, ``None`` where it is not known."""
        return self._tenants.get(namespace)

    def nbytes_in(self, record: Record, bits: Iterable[int]) -> dict[int, int]:
        """Return the bytes that a block occupies in those of ``bits`` that have it and store bytes."""
        key, ledgers = record.key, self._ledgers
        return {bit: ledger.held[key] for bit in bits if (ledger := ledgers[bit]) and key in ledger.held}

    def pinned_until_ms(self, key: bytes, now_ms: int) -> dict[int, int]:
        """Return until when tiers have a block pinned (epoch ms), by the tier's number."""
        found: dict[int, int] = {}
        for bit, ledger in enumerate(self._ledgers):
            pin = ledger.pins.pins.get(key) if ledger else None
            if pin is not None and pin.until_ms > now_ms:
                found[bit] = pin.until_ms
        return found

    def end_in(self, record: Record, bit: int) -> int | None:
        """Return when a block ends in a tier (epoch ms); ``None``: never."""
        return _or_never(self._lives.end_ms(record, bit))

    def hard_end(self, record: Record) -> int | None:
        """Return a block's hard end (epoch ms); ``None``: it has none."""
        return _or_never(record.hard_ms)


def _or_never(end_ms: int) -> int | None:
    return None if end_ms >= FOREVER_MS else end_ms
