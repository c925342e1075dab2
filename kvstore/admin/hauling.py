"""Carrying out a plan: one block after the other is read, verified, written and taken from where it was."""

from __future__ import annotations

from kvstore.admin.copy_reader import CopyReader
from kvstore.admin.index import OperatedIndex
from kvstore.admin.outcome import Effect, Kind, Stay, Why
from kvstore.admin.placement import OperatedPlacement
from kvstore.admin.planning import Carrying, Coming
from kvstore.clock import Clock
from kvstore.reading import Read
from kvstore.record import Record
from kvstore.statistics import Count
from kvstore.storing import Storing
from kvstore.tier import MemoryTier, Tier

_FAILURES = {Read.UNKNOWN_FORM: Why.UNREADABLE, Read.REFUSED: Why.OUT}


class Hauler:
    """Carries blocks for one errand that was planned at ``since_ms``. Not thread-safe; blocks on the media.

    ``effects`` and ``stays`` say what happened. One block's memory is all it takes.
    """

    def __init__(
        self,
        index: OperatedIndex,
        placement: OperatedPlacement,
        storing: Storing,
        clock: Clock,
        since_ms: int,
    ) -> None:
        self.effects: list[Effect] = []
        self.stays: list[Stay] = []
        self._index = index
        self._placement = placement
        self._storing = storing
        self._clock = clock
        self._since_ms = since_ms
        self._copies = CopyReader(placement)

    def carry(self, step: Carrying, target: Tier, *, leaves_source: bool) -> None:
        """Bring one block to ``target``; with ``leaves_source`` it goes from there once it has arrived."""
        why = self._bring(step, step.coming) if step.coming is not None else None
        if leaves_source:
            (found,) = self._index.peek([step.key], 1 << target.bit, self._clock.wall_ms())
            why = self._take_away(step, target) if found else why or Why.FAILED
        if why is not None:
            self.stays.append(Stay(step.key, target.name, why, step.raw_bytes))

    def _take_away(self, step: Carrying, target: Tier) -> Why | None:
        key, source = step.key, step.source
        repinned = self._index.move_pin(key, source.bit, target.bit)
        if isinstance(repinned, Why):
            return repinned
        why = self._placement.take_away(source, key, moves=True)
        if repinned is not None:
            self._placement.rewrite_headers([repinned], insist=True)
        if why is None:
            self.effects.append(Effect(Kind.LEAVES, key, source.name, step.nbytes, step.tenant))
        return why

    def _bring(self, step: Carrying, coming: Coming) -> Why | None:
        key, target = step.key, coming.tier
        held = self._index.hold(key, step.source.bit, self._clock.wall_ms())
        if held is None:
            return Why.NOT_THERE
        try:
            landed = held.copy()
            if isinstance(target, MemoryTier):
                why = self._into_memory(step.source, landed, target, coming)
            else:
                why = self._onto_medium(step.source, landed, coming)
        finally:
            self._index.unhold([held])
        nbytes = self._index.nbytes_of(target.bit, key)
        if why is None and nbytes is not None:
            self.effects.append(Effect(Kind.ARRIVES, key, target.name, nbytes, step.tenant))
        return Why.FAILED if why is None and nbytes is None else why

    def _onto_medium(self, source: Tier, landed: Record, coming: Coming) -> Why | None:
        def clear_the_way(nbytes: int) -> None:
            self._placement.clear_the_way(coming, nbytes, self._since_ms, self.effects.append)

        def write(data: memoryview) -> Why | None:
            return self._placement.write_now(coming.tier, landed, data, clear_the_way, self.effects.append)

        read = self._copies.read(source, landed, write)
        return _FAILURES.get(read, Why.FAILED) if isinstance(read, Read) else read

    def _into_memory(self, source: Tier, landed: Record, memory: MemoryTier, coming: Coming) -> Why | None:
        self._placement.clear_the_way(coming, coming.nbytes, self._since_ms, self.effects.append)
        room = self._placement.reserve(memory, landed, landed.raw_bytes, self.effects.append)
        if room is None:
            return self._placement.why_no_room(memory, landed.key)
        slot = self._storing.allocate(landed, memory)
        read = self._copies.read_into(source, landed, slot.view) if slot is not None else Read.REFUSED
        if slot is None or read is not Read.DONE:
            self._index.cancel(memory.bit, room)
            if slot is None:
                return Why.NO_ROOM
            slot.free()
            return _FAILURES.get(read, Why.FAILED)
        self._storing.sample(landed, slot.view)
        kept = self._placement.keep(memory, landed, room, slot)
        if kept is None:
            slot.free()
            return Why.FAILED
        memory.counters.add(Count.PROMOTIONS)
        kept.give_back()
        return None
