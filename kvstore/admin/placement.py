"""Moving blocks into and out of tiers at an operator's wish: at once, on the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvstore.absences import Cause
from kvstore.admin.index import OperatedIndex
from kvstore.admin.outcome import Effect, Kind, Why
from kvstore.admin.planning import Coming, Going, effect
from kvstore.clock import Clock
from kvstore.forms import header_of
from kvstore.making_room import Room
from kvstore.placement import Placement
from kvstore.record import Record
from kvstore.statistics import Count
from kvstore.tier import Tier

Tell = Callable[[Effect], None]
"""Hears of what happened."""


class OperatedPlacement(Placement):
    """What ``Placement`` does, block by block and without queues: who calls waits for the media."""

    def __init__(
        self, tiers: Sequence[Tier], index: OperatedIndex, clock: Clock, *, finds_device: bool = True
    ) -> None:
        super().__init__(tiers, index, clock, finds_device=finds_device)
        self._operated = index

    def clear_the_way(self, coming: Coming, nbytes: int, since_ms: int, tell: Tell) -> None:
        """Evict blocks as planned, as many as it takes for ``nbytes`` of the one that comes."""
        for victim in coming.victims:
            if self._operated.has_room(coming.tier.bit, nbytes, coming.namespace):
                return
            self._let_go(victim, since_ms, tell)

    def _let_go(self, going: Going, since_ms: int, tell: Tell) -> None:
        """Evict a block as planned, unless it was used since then, is in use, or is pinned by now."""
        victim = self._operated.take(going.tier.bit, going.key, Cause.EVICTED, unused_since_ms=since_ms)
        if isinstance(victim, Why):
            return
        for demotion in going.demotions:
            self.clear_the_way(demotion, demotion.nbytes, since_ms, tell)
        self._see_off(going.tier, victim, self._write, [demotion.tier for demotion in going.demotions])
        going.tier.counters.add(Count.EVICTIONS)
        tell(effect(Kind.EVICTED, going))
        for demotion in going.demotions:
            nbytes = self._operated.nbytes_of(demotion.tier.bit, going.key)
            if nbytes is not None:
                tell(effect(Kind.DEMOTED, demotion._replace(nbytes=nbytes)))

    def take_away(self, tier: Tier, key: bytes, *, moves: bool = False) -> Why | None:
        """Remove a block from a tier by hand, and from its medium; returns why it stays, if it does."""
        taken = self._operated.take(tier.bit, key, Cause.CLEARED, moves=moves)
        if isinstance(taken, Why):
            return taken
        self._delete(tier, key)
        return Why.FAILED if key in self._operated.stuck(tier.bit) else None

    def call_off(self, tiers: Sequence[Tier], key: bytes) -> None:
        """See to it that a block which waits to be written to ``tiers`` does not come there."""
        for tier in tiers:
            if self._demotions.cancel(tier.bit, key):
                self._index.note_absent(key, Cause.CLEARED, tier.bit)

    def why_no_room(self, tier: Tier, key: bytes) -> Why:
        """Return why nothing was set aside for a block: another brought it meanwhile, or it does not fit."""
        is_there = self._operated.nbytes_of(tier.bit, key) is not None or self._index.is_moving(tier.bit, key)
        return Why.ALREADY_THERE if is_there else Why.NO_ROOM

    def reserve(self, tier: Tier, facts: Record, stored_bytes: int, tell: Tell) -> Room | None:
        """Set room aside; whoever has to make way for it beyond what was planned is told."""
        self.make_way(tier, facts.key, self._clock.wall_ms())
        reserved = self._index.reserve(tier.bit, facts, tier.footprint(stored_bytes))
        if reserved is None:
            return None
        room, victims = reserved
        for victim in victims:
            self._see_off(tier, victim, self._write)
            tier.counters.add(Count.EVICTIONS)
            nbytes, tenant = tier.footprint(victim.raw_bytes), self._operated.tenant_of(victim.namespace)
            tell(Effect(Kind.EVICTED, victim.key, tier.name, nbytes, tenant))
        return None if victims and self._index.is_void(tier.bit, room) else room

    def write_now(
        self, tier: Tier, facts: Record, data: memoryview, clear_the_way: Callable[[int], None], tell: Tell
    ) -> Why | None:
        """Write a block to a medium; ``clear_the_way`` is called with the bytes that it occupies there."""
        expiry = self._index.expiry(tier.bit, facts, self._clock.wall_ms())
        if expiry is None:
            return Why.ENDED
        if tier.pool.is_closing or not tier.may_write():
            return Why.OUT
        self._retry_stuck(tier)
        stored = tier.encode(data)
        if stored is None:
            return Why.FAILED
        clear_the_way(tier.footprint(len(stored.data)))
        room = self.reserve(tier, facts, len(stored.data), tell)
        if room is None:
            return self.why_no_room(tier, facts.key)
        if not tier.write(header_of(facts, stored, expiry), stored.data):
            self._index.cancel(tier.bit, room)
            return Why.FAILED
        self._index.settle(tier.bit, room, facts, self._clock.monotonic_s())
        self._keep_out(tier, facts.key)
        return None
