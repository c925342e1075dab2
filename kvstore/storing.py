"""Storing a block: reserve memory, let the caller fill it, publish it in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvstore.absences import Cause
from kvstore.arena import Slot
from kvstore.audit import Audit
from kvstore.frame import checksum
from kvstore.index import ResidencyIndex
from kvstore.loading import SharedBytes
from kvstore.making_room import Room
from kvstore.memory_room import MemoryRoom
from kvstore.placement import Placement
from kvstore.record import Record
from kvstore.statistics import Count
from kvstore.tier import DEVICE_BIT, MemoryTier, Tier

_MOST_REMOVED = 8  # more than comes in, so that what has expired never piles up


class Home(NamedTuple):
    """The memory tier in which a new block will stay, and the room set aside for it there."""

    tier: MemoryTier
    room: Room


class Reservation:
    """Memory for one block, the caller's until ``commit`` or ``abort``; exactly one must follow."""

    __slots__ = ("_facts", "_home", "_lower", "_slot", "_storing", "view")

    def __init__(
        self, storing: Storing, facts: Record, slot: Slot, home: Home | None, lower: Sequence[Tier]
    ) -> None:
        self.view = slot.view
        """Where the block's bytes go, in their layout at rest; page-aligned."""
        self._storing = storing
        self._facts = facts
        self._slot = slot
        self._home = home
        self._lower = lower

    def commit(self, known_checksum: int | None = None) -> None:
        """Make the block visible, all its bytes being in ``view``; lower tiers follow behind.

        ``known_checksum`` is the xxh3 of these bytes, if the caller has it.
        """
        self._facts.checksum = known_checksum
        self._storing.commit(self._facts, self._slot, self._home, self._lower)

    def abort(self) -> None:
        """Give the memory back; nothing was stored."""
        self._storing.abort(self._slot, self._home)


class Storing:
    """Takes new blocks in. A block goes to the memory tier and, behind, to the tiers below it.

    Keys in the audit's sample get their checksum at once, so that loads from our own memory can
    be verified; the others when they are first written to a lower tier.
    """

    def __init__(self, placement: Placement, index: ResidencyIndex, room: MemoryRoom, audit: Audit) -> None:
        self._placement = placement
        self._index = index
        self._room = room
        self._audit = audit

    def reserve(self, facts: Record, num_tokens: int, ttl_ms: int | None) -> Reservation | None:
        """Return memory for the block, or ``None``; see ``TieredStore.reserve``."""
        self._placement.remove_due(facts.created_ms, _MOST_REMOVED)
        if self._index.offer(facts, self._placement.bytes_mask, ttl_ms):
            return None
        memory, room = self._placement.memory, None
        has_no_home = memory is not None and memory.is_draining
        if memory is not None and not memory.admits(num_tokens, facts):
            memory = None
        if memory is not None:
            room = self._placement.make_room(memory, facts)
            if room is None and self._index.is_moving(memory.bit, facts.key):
                return None
            has_no_home = room is None
        lower = self._placement.write_targets(num_tokens, facts, has_no_home=has_no_home)
        home = Home(memory, room) if memory is not None and room is not None else None
        slot = self.allocate(facts, home and home.tier) if home or lower else None
        if slot is None:
            self._drop(facts.key, home, lower if memory is None else [memory])
            return None
        return Reservation(self, facts, slot, home, lower)

    def commit(self, facts: Record, slot: Slot, home: Home | None, lower: Sequence[Tier]) -> None:
        """Publish a filled slot and queue it for the tiers below."""
        view, give_back = slot.view, slot.free
        self.sample(facts, view)
        kept = self._placement.keep(home.tier, facts, home.room, slot) if home else None
        if home is not None and kept is not None:
            home.tier.counters.add_transfer(Count.STORES, Count.STORED_BYTES, len(view))
            facts, view, give_back = kept.record, kept.data, kept.give_back
        if not lower:
            give_back()
            return
        shared = SharedBytes(view, give_back, num_readers=len(lower))
        for tier in lower:
            self._placement.write_behind(tier, facts, shared)

    def sample(self, facts: Record, view: memoryview) -> None:
        """Take the checksum of a block for our own memory, where the audit selects it and it is not known."""
        if facts.checksum is None and self._audit.selects(facts.key):
            facts.checksum = checksum(view)

    def abort(self, slot: Slot, home: Home | None) -> None:
        """Give a reservation's memory and room back."""
        slot.free()
        if home is not None:
            self._index.cancel(home.tier.bit, home.room)

    def used_again(self, records: Sequence[Record]) -> None:
        """Blocks were hit: lower tiers that wait for a second use may take them now."""
        self._placement.write_on_second_use(records)
        self._placement.keep_headers(records)

    def allocate(self, facts: Record, home: MemoryTier | None) -> Slot | None:
        """Return a slot; where the budget of ``home`` has room and memory has not, more blocks make way."""
        slot = self._room.allocate(facts)
        while slot is None and home is not None and self._room.make_way(home, facts):
            slot = self._room.allocate(facts)
        return slot

    def _drop(self, key: bytes, home: Home | None, wanting: Sequence[Tier]) -> None:
        for tier in wanting:
            tier.counters.add(Count.DROPPED_STORES)
        self._index.note_absent(key, Cause.DROPPED, wanting[0].bit if wanting else DEVICE_BIT)
        if home is not None:
            self._index.cancel(home.tier.bit, home.room)
