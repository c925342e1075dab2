"""Reading copies of blocks where they are, verified, with the memory of one block."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kvstore.admin.placement import OperatedPlacement
from kvstore.frame import checksum
from kvstore.reading import Landing, Read
from kvstore.record import Record
from kvstore.slab import map_memory
from kvstore.statistics import Count
from kvstore.tier import MemoryTier, Tier

T = TypeVar("T")


class CopyReader:
    """Reads one copy after the other, for who may wait; others ask ``StoredCopies``. Not thread-safe.

    A copy that is bad goes from its tier, as after any load. ``landed`` is what is known of a block (a copy)
    that the caller holds; its ``checksum`` is that of the bytes that were read, ``None``: not known.
    """

    def __init__(self, placement: OperatedPlacement) -> None:
        self._placement = placement
        self._buffer = memoryview(b"")

    def read(self, tier: Tier, landed: Record, use: Callable[[memoryview], T]) -> T | Read:
        """Return what ``use`` makes of the block's bytes, its alone until it returns, or how that failed."""
        if isinstance(tier, MemoryTier):
            return self._read_lent(tier, landed, use)
        if len(self._buffer) < landed.raw_bytes:
            self._buffer = map_memory(landed.raw_bytes)
        out = self._buffer[: landed.raw_bytes]
        outcome = self.read_into(tier, landed, out)
        return use(out) if outcome is Read.DONE else outcome

    def read_into(self, tier: Tier, landed: Record, out: memoryview) -> Read:
        """Read a block from a medium into ``out``, which is as long as the block."""
        outcome = tier.read(Landing(landed, out, is_used=False)).outcome
        self._placement.note_bad(tier, landed.key, outcome)
        return outcome

    def _read_lent(self, memory: MemoryTier, landed: Record, use: Callable[[memoryview], T]) -> T | Read:
        """Do so where it lies in our own memory, and verify it if its checksum is known."""
        loan = memory.lending.lend(landed.key)
        if loan is None:
            return Read.MISSING
        try:
            if landed.checksum in {None, checksum(loan.data)}:
                return use(loan.data)
        finally:
            loan.give_back()
        memory.counters.add(Count.CORRUPT)
        self._placement.note_bad(memory, landed.key, Read.CORRUPT)
        return Read.CORRUPT
