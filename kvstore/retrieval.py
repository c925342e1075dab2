"""Loading a block from the fastest tier that stores it: at once from memory, by ticket from a medium."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from threading import Condition

from kvstore.arena import Arena, Slot
from kvstore.audit import Audit
from kvstore.clock import Clock
from kvstore.frame import checksum, copy_and_checksum
from kvstore.index import ResidencyIndex
from kvstore.loading import Load, OnDone, SharedBytes, Ticket
from kvstore.placement import Placement
from kvstore.record import Record
from kvstore.statistics import Count
from kvstore.tier import MemoryTier, Read, Tier

_STAGING_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class _Flight:
    """One transfer under way: the block, held, what its bytes turn out to be, and who waits for it."""

    tier: Tier
    record: Record
    landed: Record
    load: Load
    began_s: float


class Retrieval:
    """Turns keys into tickets. One transfer per key at a time, whoever asks. Thread-safe."""

    def __init__(
        self,
        tiers: Sequence[Tier],
        index: ResidencyIndex,
        placement: Placement,
        arena: Arena,
        clock: Clock,
        audit: Audit,
    ) -> None:
        self._tiers = tuple(tiers)
        self._index = index
        self._placement = placement
        self._arena = arena
        self._clock = clock
        self._audit = audit
        self._flights: dict[bytes, _Flight] = {}
        self._changed = Condition()

    def load(
        self, key: bytes, deadline_s: float, on_done: OnDone | None, now_ms: int | None = None
    ) -> Ticket:
        """Return a ticket for the block of ``key``; a miss when no tier that stores bytes has it.

        A ticket abandoned after ``deadline_s`` (monotonic) counts against its tier. Without a lease
        the block must be alive at ``now_ms``.
        """
        for tier in self._tiers:
            record = self._index.hold(key, tier.bit, now_ms) if tier.is_readable() else None
            if record is None:
                continue
            if not isinstance(tier, MemoryTier):
                return self._fly(tier, record, deadline_s, on_done)
            shared = self._lend(tier, record)
            if shared is not None:
                return Ticket.of(shared)
        return Ticket.of(None)

    def get_into(self, key: bytes, out: memoryview, timeout_s: float) -> bool:
        """Copy the block of ``key`` into ``out``; blocks up to ``timeout_s``. ``False``: a miss."""
        memory, now_ms = self._placement.memory, self._clock.wall_ms()
        record = self._index.hold(key, memory.bit, now_ms) if memory is not None else None
        if memory is not None and record is not None and self._copy_from(memory, record, out):
            return True
        ticket = self.load(key, self._clock.monotonic_s() + timeout_s, None, now_ms)
        if not ticket.wait(timeout_s):
            ticket.abandon()
            return False
        block = ticket.take()
        if block is None:
            return False
        is_same_size = len(block.data) == len(out)
        if is_same_size:
            out[:] = block.data
        block.release()
        return is_same_size

    def _copy_from(self, tier: MemoryTier, record: Record, out: memoryview) -> bool:
        """Copy a held block of the memory tier, hashing as it goes where the audit selects it."""
        lent = self._placement.lend(tier, record)
        if lent is None:
            return False
        is_whole = len(lent.data) == len(out)
        if is_whole:
            if not self._is_audited(record):
                out[:] = lent.data
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
        return SharedBytes(lent.data, lent.give_back, tier=tier.name)

    def _drop_corrupt(self, tier: MemoryTier, record: Record) -> None:
        tier.counters.add(Count.CORRUPT)
        self._placement.remove(tier, record.key, even_if_held=True)

    def _is_audited(self, record: Record) -> bool:
        return record.checksum is not None and self._audit.selects(record.key)

    def _fly(self, tier: Tier, record: Record, deadline_s: float, on_done: OnDone | None) -> Ticket:
        """Join the transfer of this block that is under way, or begin one."""

        def note_if_late() -> None:
            if self._clock.monotonic_s() >= deadline_s:
                tier.note_late_load()

        with self._changed:
            flight = self._flights.get(record.key)
            ticket = flight.load.join(on_done, note_if_late) if flight else None
            if ticket is not None:
                self._index.unhold([record])
                return ticket
            load = Load()
            flight = self._flights[record.key] = _Flight(
                tier, record, record.copy(), load, self._clock.monotonic_s()
            )
            ticket = Ticket.on(load, on_done, note_if_late)
        if not tier.pool.read(partial(self._run, flight)):
            tier.counters.add(Count.REFUSED_LOADS)
            self._finish(flight, None)
        return ticket

    def _run(self, flight: _Flight) -> None:
        """Move the block; whatever happens, whoever waits for it hears of the end."""
        slot = None
        try:
            slot = self._land(flight)
        finally:
            self._finish(flight, slot)

    def _land(self, flight: _Flight) -> Slot | None:
        """Read the block into staging memory and return that; ``None``: a miss, for whatever reason."""
        slot = self._staging_slot(flight)
        if slot is None:
            flight.tier.counters.add(Count.REFUSED_LOADS)
            return None
        outcome = flight.tier.read(flight.landed, slot.view)
        if outcome is Read.DONE:
            return slot
        slot.free()
        if outcome in (Read.MISSING, Read.CORRUPT):
            self._placement.remove(flight.tier, flight.record.key, even_if_held=True)
        elif outcome is Read.REFUSED:
            flight.tier.counters.add(Count.REFUSED_LOADS)
        return None

    def _finish(self, flight: _Flight, slot: Slot | None) -> None:
        with self._changed:
            self._flights.pop(flight.record.key, None)
        if slot is None:
            flight.load.finish(None)
            self._index.unhold([flight.record])
            return
        data, give_back = slot.view, self._keep(flight, slot)
        flight.load.finish(lambda n: SharedBytes(data, give_back, tier=flight.tier.name, num_readers=n))

    def _keep(self, flight: _Flight, slot: Slot) -> OnDone:
        """Promote what was loaded if memory has room; returns how its bytes are given back."""
        record, memory = flight.record, self._placement.memory
        if memory is None or not memory.admits(record.block_tokens, record):
            return lambda: self._give_back(record, slot)
        room = self._placement.make_room(memory, record)
        kept = None if room is None else self._placement.keep(memory, flight.landed, room, slot)
        if kept is None:
            return lambda: self._give_back(record, slot)
        memory.counters.add(Count.PROMOTIONS)
        self._index.unhold([record])
        return kept.give_back

    def _give_back(self, record: Record, slot: Slot) -> None:
        slot.free()
        self._index.unhold([record])
        with self._changed:
            self._changed.notify_all()

    def _staging_slot(self, flight: _Flight) -> Slot | None:
        """Return memory to land in, waiting while other loads use it all; ``None``: none in time."""
        ends_at_s = flight.began_s + _STAGING_WAIT_S
        while not flight.tier.pool.is_closing and flight.load.is_wanted():
            slot = self._arena.allocate(flight.record.raw_bytes)
            if slot is not None or self._clock.monotonic_s() >= ends_at_s:
                return slot
            memory = self._placement.memory
            if memory is None or not self._placement.evict_next(memory):
                with self._changed:
                    self._changed.wait(0.01)
        return None
