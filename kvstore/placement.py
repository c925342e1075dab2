"""Where blocks go: making room, writing behind, demoting, and letting go."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Thread
from typing import NamedTuple

from kvstore.absences import Cause
from kvstore.arena import Slot
from kvstore.clock import Clock
from kvstore.demotions import Demotion, Demotions
from kvstore.forms import header_of
from kvstore.header_updates import HeaderUpdates
from kvstore.keeping import KeepingIndex
from kvstore.loading import GiveBack, SharedBytes
from kvstore.making_room import Room
from kvstore.record import Record
from kvstore.removal import Removal
from kvstore.seams import Loan
from kvstore.statistics import Count
from kvstore.tier import DEVICE_BIT, MemoryTier, Tier, WriteMode

_MOST_AT_ONCE = 64

Write = Callable[[Tier, Record, SharedBytes, Demotion | None], None]


class Lent(NamedTuple):
    """A held block of the memory tier and its bytes; ``give_back``, once, ends the loan and the hold."""

    record: Record
    data: memoryview
    give_back: GiveBack
    slot: Slot


class Placement(Removal):
    """Moves blocks into and out of tiers; bookkeeping is the index's, bytes are the backends'."""

    def __init__(
        self, tiers: Sequence[Tier], index: KeepingIndex, clock: Clock, *, finds_device: bool = True
    ) -> None:
        super().__init__(index)
        self._tiers = tuple(tiers)
        self._clock = clock
        self.memory = next((tier for tier in tiers if isinstance(tier, MemoryTier)), None)
        self.below_memory = tuple(tier for tier in tiers if tier is not self.memory)
        self._write_through = self._with_mode(WriteMode.THROUGH)
        self._write_back = self._with_mode(WriteMode.BACK)
        self._write_second_use = self._with_mode(WriteMode.SECOND_USE)
        self._demotions = Demotions()
        self._header_updates = HeaderUpdates(tiers, index, clock)
        self._copying: set[tuple[int, bytes]] = set()  # queued already: a block may be hit again and again
        self.bytes_mask = sum(1 << tier.bit for tier in tiers)
        self._device_mask = 1 << DEVICE_BIT if finds_device else 0

    def findable_mask(self) -> int:
        """Return the tiers that lookups should count on, the engine's own pool included, as a mask."""
        return self._device_mask | sum(1 << tier.bit for tier in self._tiers if tier.is_readable())

    def make_room(self, tier: Tier, facts: Record, stored_bytes: int | None = None) -> Room | None:
        """Set room aside and see its victims off; blocks on the medium of a tier below memory.

        ``stored_bytes`` is the block's length there, if that is not its raw one.
        """
        nbytes = facts.raw_bytes if stored_bytes is None else stored_bytes
        self.make_way(tier, facts.key, self._clock.wall_ms())
        reserved = self._index.reserve(tier.bit, facts, tier.footprint(nbytes))
        if reserved is None:
            return None
        room, victims = reserved
        for victim in victims:
            self._see_off(tier, victim)
        if not victims:
            return room
        tier.counters.add(Count.EVICTIONS, len(victims))
        return None if self._index.is_void(tier.bit, room) else room

    def evicted(self, tier: Tier, victim: Record) -> None:
        """See a block off that the index has begun to remove for room."""
        self._see_off(tier, victim)
        tier.counters.add(Count.EVICTIONS)

    def keep(self, tier: MemoryTier, facts: Record, room: Room, slot: Slot) -> Lent | None:
        """Publish a filled slot in the memory tier, and lend it.

        ``None``: the tier is closed, and the slot stays the caller's.
        """
        loan = tier.lending.adopt(facts.key, slot)
        if loan is None:
            self._index.cancel(tier.bit, room)
            return None
        record = self._index.settle_in_memory(tier.bit, room, facts, self._clock.monotonic_s())
        self._keep_out(tier, facts.key)
        return self._lent(record, loan)

    def lend(self, tier: MemoryTier, record: Record) -> Lent | None:
        """Lend a held block of the memory tier; ``None``: it is gone, and not held any more."""
        loan = tier.lending.lend(record.key)
        if loan is None:
            self._index.unhold([record])
            return None
        return self._lent(record, loan)

    def write_targets(self, num_tokens: int, facts: Record, *, has_no_home: bool) -> list[Tier]:
        """Return the lower tiers that want a new block at once; ``has_no_home``: memory has no room."""
        wanting = (*self._write_through, *self._write_back) if has_no_home else self._write_through
        return [tier for tier in wanting if tier.admits(num_tokens, facts)]

    def write_behind(
        self, tier: Tier, facts: Record, shared: SharedBytes, demotion: Demotion | None = None
    ) -> None:
        """Queue a write to a lower tier; ``shared`` is released when it is done or dropped. Never blocks."""
        if not tier.pool.write(lambda: self._write(tier, facts, shared, demotion)):
            self._drop(tier, facts)
            self._end_write(shared, demotion)

    def write_on_second_use(self, records: Sequence[Record]) -> None:
        """Queue hit blocks of the memory tier for the lower tiers that wait for a second use."""
        memory = self.memory
        if memory is None:
            return
        for tier in self._write_second_use:
            for record in records:
                is_above_only = not record.tiers >> tier.bit & 1 and record.tiers >> memory.bit & 1
                if is_above_only and tier.admits(record.block_tokens, record):
                    self._copy_down(memory, tier, record)

    def keep_headers(self, records: Sequence[Record]) -> None:
        """Bring headers of blocks that were used in line with their ends, behind, when they lag much."""
        self._header_updates.used(records)

    def remove_from(self, tiers: Sequence[Tier], key: bytes) -> bool:
        """Take a block out of ``tiers``, unless it is in use; says whether it was in any."""
        num_tiers = 0
        for tier in tiers:
            is_called_off = self._demotions.cancel(tier.bit, key)
            if is_called_off:
                self._index.note_absent(key, Cause.CLEARED, tier.bit)
            num_tiers += self.remove(tier, key, Cause.CLEARED) or is_called_off
        return num_tiers > 0

    def quarantine(self, key: bytes) -> None:
        """Take a block, and all that was computed on it, out of every tier, in use or not; keep them out."""
        for suspect in self._index.quarantine(key):
            for tier in self._tiers:
                self._demotions.cancel(tier.bit, suspect)
                self.remove(tier, suspect, Cause.QUARANTINED, even_if_held=True)

    def keys_in(self, tier: Tier) -> list[bytes]:
        """Return the keys of what a tier holds, or will once its queue is written."""
        return [*self._index.resident(tier.bit), *self._demotions.waiting(tier.bit)]

    def remove_due(self, now_ms: int, limit: int = _MOST_AT_ONCE) -> int:
        """Remove up to ``limit`` blocks whose time is over; returns how many there were."""
        due = self._index.due(now_ms, limit)
        for key, mask, is_hard in due:
            for tier in self._tiers:
                if mask >> tier.bit & 1 and self.expire(tier, key, is_hard=is_hard):
                    tier.counters.add(Count.EXPIRATIONS)
        return len(due)

    def rewrite_headers(self, records: Sequence[Record], *, insist: bool = False) -> None:
        """Bring headers of these blocks in line with their ends, behind; not for sure unless one insists."""
        (self._header_updates.insist if insist else self._header_updates.ask)(records)

    def retry_headers(self) -> None:
        """Try those again that somebody insists on."""
        self._header_updates.retry()

    def close(self, ends_at_s: float) -> None:
        """Finish the writes of all tiers and close them, each on its own, by ``ends_at_s`` (monotonic)."""

        def close(tier: Tier) -> None:
            tier.pool.close(max(0.0, (ends_at_s - time.monotonic()) * 0.8))
            tier.close_backend()

        closing = [
            Thread(target=close, args=(tier,), name=f"{tier.name}-close", daemon=True) for tier in self._tiers
        ]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(max(0.0, ends_at_s - time.monotonic()))

    def _write(self, tier: Tier, facts: Record, shared: SharedBytes, demotion: Demotion | None) -> None:
        try:
            if demotion is not None and demotion.is_cancelled:
                return
            if tier.pool.is_closing or tier.is_draining or not tier.may_write():
                self._drop(tier, facts)
                return
            self._retry_stuck(tier)
            self._write_now(tier, facts, shared.data)
            if demotion is not None and demotion.is_cancelled:
                self.remove(tier, facts.key, Cause.CLEARED, even_if_held=True)
        finally:
            self._end_write(shared, demotion)

    def _write_now(self, tier: Tier, facts: Record, data: memoryview) -> None:
        expiry = self._index.expiry(tier.bit, facts, self._clock.wall_ms())
        if expiry is None:
            self._index.note_absent(facts.key, Cause.EXPIRED, tier.bit)
            return
        stored = tier.encode(data)
        room = self.make_room(tier, facts, len(stored.data)) if stored else None
        if stored is None or room is None:
            self._drop(tier, facts)
        elif tier.write(header_of(facts, stored, expiry), stored.data):
            self._index.settle(tier.bit, room, facts, self._clock.monotonic_s())
            self._keep_out(tier, facts.key)
        else:
            self._index.cancel(tier.bit, room)
            self._index.note_absent(facts.key, Cause.DROPPED, tier.bit)

    def _end_write(self, shared: SharedBytes, demotion: Demotion | None) -> None:
        if demotion is not None:
            self._demotions.end(demotion)
        shared.release()

    def _drop(self, tier: Tier, facts: Record) -> None:
        tier.counters.add(Count.DROPPED_STORES)
        self._index.note_absent(facts.key, Cause.DROPPED, tier.bit)

    def _copy_down(self, memory: MemoryTier, tier: Tier, record: Record) -> None:
        copy = tier.bit, record.key
        now_ms = self._clock.wall_ms()
        held = self._index.hold(record.key, memory.bit, now_ms) if copy not in self._copying else None
        lent = self.lend(memory, held) if held is not None else None
        if lent is None:
            return

        def give_back() -> None:
            self._copying.discard(copy)
            lent.give_back()

        self._copying.add(copy)
        self.write_behind(tier, lent.record, SharedBytes(lent.data, give_back))

    def _lent(self, record: Record, loan: Loan) -> Lent:
        def give_back() -> None:
            loan.give_back()
            self._index.unhold([record])

        return Lent(record, loan.data, give_back, loan.slot)

    def _see_off(
        self, tier: Tier, victim: Record, write: Write | None = None, below: Sequence[Tier] | None = None
    ) -> None:
        """Let a victim go: from memory into the tiers that take what is evicted, elsewhere for good.

        ``write`` is how it is written there (behind), and ``below`` where, unless told otherwise.
        """
        if not isinstance(tier, MemoryTier):
            if self._index.is_theirs(tier.bit, victim.key):
                self._index.confirm_removal(tier.bit, victim.key)
            else:
                self._delete(tier, victim.key)
            return
        slot = tier.lending.surrender(victim.key)
        self._index.confirm_removal(tier.bit, victim.key)
        if slot is None:
            return
        wanting = self._wanting(tier, victim) if below is None else below
        if not wanting:
            slot.free()
            return
        shared = SharedBytes(slot.view, slot.free, num_readers=len(wanting))
        for lower in wanting:
            demotion = self._demotions.begin(lower.bit, victim.key)
            (write or self.write_behind)(lower, victim.copy(), shared, demotion)

    def _wanting(self, tier: Tier, victim: Record) -> list[Tier]:
        """Return the tiers that take a block which memory evicts."""
        if self._index.has_ended(tier.bit, victim, self._clock.wall_ms()):
            return []
        missing = (lower for lower in self._write_back if not victim.tiers >> lower.bit & 1)
        return [lower for lower in missing if lower.admits(victim.block_tokens, victim)]

    def _with_mode(self, mode: WriteMode) -> tuple[Tier, ...]:
        return tuple(tier for tier in self.below_memory if tier.config.write_mode is mode)
