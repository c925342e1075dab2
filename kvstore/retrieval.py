"""Loading a block from the fastest tier that stores it: at once from memory, by ticket from a medium."""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.absences import Cause
from kvstore.arena import Slot
from kvstore.audit import Audit
from kvstore.clock import Clock
from kvstore.flights import Flights
from kvstore.frame import checksum, copy, copy_and_checksum
from kvstore.index import ResidencyIndex
from kvstore.loading import OnDone, SharedBytes, Ticket
from kvstore.placement import Placement
from kvstore.record import Record
from kvstore.statistics import Count
from kvstore.tier import MemoryTier, Tier


class Retrieval:
    """Turns keys into tickets. Thread-safe."""

    def __init__(
        self,
        tiers: Sequence[Tier],
        index: ResidencyIndex,
        placement: Placement,
        flights: Flights,
        clock: Clock,
        audit: Audit,
    ) -> None:
        self._tiers = tuple(tiers)
        self._index = index
        self._placement = placement
        self._flights = flights
        self._clock = clock
        self._audit = audit

    def load(
        self, key: bytes, deadline_s: float, on_done: OnDone | None, *, is_leased: bool = True
    ) -> Ticket:
        """Return a ticket for the block of ``key``; a miss when no tier that stores bytes has it alive.

        A ticket abandoned after ``deadline_s`` (monotonic) counts against its tier.
        """
        now_ms = self._clock.wall_ms()
        for tier in self._tiers:
            if not tier.is_readable():
                continue
            record = self._index.hold(key, tier.bit, now_ms, is_leased=is_leased)
            if record is None:
                continue
            if not isinstance(tier, MemoryTier):
                return self._flights.begin(tier, record, deadline_s, on_done)
            shared = self._lend(tier, record)
            if shared is not None:
                return Ticket.of(shared)
        return Ticket.of(None)

    def places(self, records: Sequence[Record]) -> list[Slot | None]:
        """Return where held blocks lie in our own memory, to be read while they are held."""
        memory = self._placement.memory
        if memory is None:
            return [None] * len(records)
        return [memory.lending.where(record.key) for record in records]

    def get_into(self, key: bytes, out: memoryview, timeout_s: float) -> bool:
        """Copy the block of ``key`` into ``out``; blocks up to ``timeout_s``. ``False``: a miss."""
        memory, now_ms = self._placement.memory, self._clock.wall_ms()
        record = self._index.hold(key, memory.bit, now_ms) if memory is not None else None
        if memory is not None and record is not None and self._copy_from(memory, record, out):
            return True
        ticket = self.load(key, self._clock.monotonic_s() + timeout_s, None, is_leased=False)
        return ticket.read_into(out, timeout_s)

    def _copy_from(self, tier: MemoryTier, record: Record, out: memoryview) -> bool:
        """Copy a held block of the memory tier, hashing as it goes where the audit selects it."""
        lent = self._placement.lend(tier, record)
        if lent is None:
            return False
        is_whole = len(lent.data) == len(out)
        if is_whole:
            if not self._is_audited(record):
                copy(lent.data, out)
            elif copy_and_checksum(lent.data, out) != record.checksum:
                self._drop_corrupt(tier, record)
                is_whole = False
        if is_whole:
            tier.counters.add_transfer(Count.LOADS, Count.LOADED_BYTES, len(out))
        lent.give_back()
        return is_whole

    def _lend(self, tier: MemoryTier, record: Record) -> SharedBytes | None:
        """Lend a block of the memory tier, verified if the audit selects it; ``None``: it is gone."""
        lent = self._placement.lend(tier, record)
        if lent is None:
            return None
        if self._is_audited(record) and checksum(lent.data) != record.checksum:
            self._drop_corrupt(tier, record)
            lent.give_back()
            return None
        tier.counters.add_transfer(Count.LOADS, Count.LOADED_BYTES, len(lent.data))
        return SharedBytes(lent.data, lent.give_back, tier=tier.name, slot=lent.slot)

    def _drop_corrupt(self, tier: MemoryTier, record: Record) -> None:
        tier.counters.add(Count.CORRUPT)
        self._placement.remove(tier, record.key, Cause.CORRUPT, even_if_held=True)

    def _is_audited(self, record: Record) -> bool:
        return record.checksum is not None and self._audit.selects(record.key)
