"""Memory for blocks: what makes way where the arena has none left."""

from __future__ import annotations

from kvstore.arena import Arena, OwnerOf, Slot
from kvstore.keeping import KeepingIndex
from kvstore.placement import Placement
from kvstore.record import Record
from kvstore.slab import Slab
from kvstore.tier import MemoryTier


class MemoryRoom:
    """Hands out slots of ``arena``, in slabs of the block's owner. Thread-safe."""

    def __init__(self, arena: Arena, placement: Placement, index: KeepingIndex, owner_of: OwnerOf) -> None:
        self._arena = arena
        self._placement = placement
        self._index = index
        self._owner_of = owner_of

    def allocate(self, facts: Record) -> Slot | None:
        """Return a slot for a block; ``None``: there is none left."""
        return self._arena.allocate(facts.raw_bytes, self._owner_of(facts.namespace))

    def make_way(self, memory: MemoryTier, facts: Record) -> bool:
        """Evict what is next in our own memory; says whether there was anything.

        Where that lies among blocks of another kind, in a slab that is of no use to this one, a whole slab of
        that kind is emptied: the one with the fewest blocks, so that nobody loses much for a single block.
        """
        victim = self._index.evict_next(memory.bit)
        if victim is None:
            return False
        slot = memory.lending.where(victim.key)
        slab = None if slot is None else slot.slab
        self._placement.evicted(memory, victim)
        if slab is not None and not slab.is_for(facts.raw_bytes, self._owner_of(facts.namespace)):
            self._empty_one_like(memory, slab)
        return True

    def _empty_one_like(self, memory: MemoryTier, slab: Slab) -> None:
        for keys in memory.lending.slabs_like(slab):
            if victims := self._index.evict_all(memory.bit, keys):
                for victim in victims:
                    self._placement.evicted(memory, victim)
                return
