"""What bringing blocks to a tier takes: worked out before anything is moved, then carried out as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvstore.admin.index import OperatedIndex
from kvstore.admin.outcome import Effect, Kind, Stay, Why
from kvstore.pins import Pin
from kvstore.record import Record
from kvstore.residents import fastest
from kvstore.tier import MemoryTier, Tier, WriteMode


class Going(NamedTuple):
    """A block goes from a tier for another; in our own memory, into those tiers that take what is evicted."""

    tier: Tier
    key: bytes
    nbytes: int
    tenant: str | None
    demotions: tuple[Coming, ...] = ()


class Coming(NamedTuple):
    """A block comes to a tier, when ``victims`` have gone. ``nbytes`` are the most that it occupies there."""

    tier: Tier
    key: bytes
    nbytes: int
    tenant: str | None
    namespace: bytes
    victims: tuple[Going, ...]


class Carrying(NamedTuple):
    """One block from ``source`` (with ``nbytes`` there) to where it comes; ``None``: it is there already."""

    key: bytes
    raw_bytes: int
    source: Tier
    nbytes: int
    tenant: str | None
    coming: Coming | None


Planned = Carrying | Stay


@dataclass(frozen=True, slots=True)
class Errand:
    """Blocks to bring to ``target``; ``None``: each from the fastest tier that has it.

    ``leaves_source``: they are to go from there.
    """

    source: Tier | None
    target: Tier
    leaves_source: bool


class Planner:
    """Plans errands on forecasts of all tiers. For one errand; not thread-safe."""

    def __init__(self, errand: Errand, tiers: Sequence[Tier], index: OperatedIndex, now_ms: int) -> None:
        self._errand = errand
        self._tiers = {tier.bit: tier for tier in tiers}
        self._index = index
        self._now_ms = now_ms
        self._forecasts = {tier.bit: index.forecast(tier.bit) for tier in tiers}
        self._charges = Counter[str]()

    def plan(self, keys: Mapping[bytes, None]) -> list[Planned]:
        """Return what it takes for each of these blocks that is there, in their order.

        None of them makes way for another, nor does what they follow.
        """
        kept = self._index.with_ancestors(keys)

        def begin() -> None:
            for bit, forecast in self._forecasts.items():
                self._index.end_due_pins(bit)
                forecast.begin(lambda key: key in kept or self._index.is_in_use(key), self._index.is_spared)

        return self._index.survey(self._plan, keys, begin)

    def _plan(self, record: Record) -> Planned:
        source = self._source(record)
        if isinstance(source, Why):
            return Stay(record.key, self._errand.target.name, source, record.raw_bytes)
        coming = self._coming(record, source)
        if isinstance(coming, Why):
            return Stay(record.key, self._errand.target.name, coming, record.raw_bytes)
        nbytes = self._nbytes(record, source)
        if self._errand.leaves_source:
            self._forecasts[source.bit].leave(record.key)
        tenant = self._index.tenant_of(record.namespace)
        return Carrying(record.key, record.raw_bytes, source, nbytes, tenant, coming)

    def _source(self, record: Record) -> Tier | Why:
        """Return the tier from which a block is to be brought, or why it stays."""
        errand = self._errand
        living, unreadable = self._index.alive_in(record, self._now_ms)
        is_there = living >> errand.target.bit & 1
        here = living & sum(1 << bit for bit in self._tiers) & ~(1 << errand.target.bit)
        if errand.source is not None:
            here &= 1 << errand.source.bit
        if self._index.is_quarantined(record.key):
            return Why.QUARANTINED
        if is_there and not (here and errand.leaves_source):
            return Why.ALREADY_THERE
        if not here:
            return Why.UNREADABLE if unreadable and not living else Why.NOT_THERE
        return self._tiers[fastest(here)]

    def _coming(self, record: Record, source: Tier) -> Coming | Why | None:
        """Return what it takes for a block to come to the target; ``None``: it is there already."""
        errand, target = self._errand, self._errand.target
        if errand.leaves_source and record.num_holds:
            return Why.IN_USE
        is_there = self._index.alive_in(record, self._now_ms)[0] >> target.bit & 1
        nbytes = self._nbytes(record, target) if is_there else target.footprint(record.raw_bytes)
        pin = self._index.pin_in(source.bit, record.key, self._now_ms) if errand.leaves_source else None
        if pin is not None and not self._may_repin(pin, nbytes):
            return Why.PIN_BUDGET
        coming = None if is_there else self._comes_if_it_may(record, source)
        if pin is not None and not isinstance(coming, Why):
            self._repin(pin, source, nbytes)
        return coming

    def _comes_if_it_may(self, record: Record, source: Tier) -> Coming | Why:
        target = self._errand.target
        if not source.is_readable() or not target.is_writable():
            return Why.OUT
        return self._arrival(target, record) if target.would_admit(record) else Why.NOT_ADMITTED

    def _arrival(self, tier: Tier, record: Record) -> Coming | Why:
        """Return what it takes for a block to come to a tier, or why it does not."""
        if self._index.has_ended_in(record, tier.bit, self._now_ms):
            return Why.ENDED
        forecast, nbytes = self._forecasts[tier.bit], tier.footprint(record.raw_bytes)
        if record.unreadable >> tier.bit & 1:
            return Why.UNREADABLE
        if forecast.knows(record.key):
            if not record.over >> tier.bit & 1:
                return Why.IN_USE  # on its way in or out
            forecast.leave(record.key)  # its time is over there: it makes way at once
        victims = forecast.take_in(record.key, record.namespace, nbytes)
        if isinstance(victims, Why):
            return victims
        going = tuple(self._going(tier, victim) for victim in victims)
        tenant = self._index.tenant_of(record.namespace)
        return Coming(tier, record.key, nbytes, tenant, record.namespace, going)

    def _going(self, tier: Tier, key: bytes) -> Going:
        """Return how a victim goes: from memory into the tiers that are written when it evicts."""
        record = self._index.known(key)
        is_over = self._index.has_ended_in(record, tier.bit, self._now_ms)
        wanting = self._wanting(record) if isinstance(tier, MemoryTier) and not is_over else []
        comings = (self._arrival(below, record) for below in wanting)
        demotions = tuple(coming for coming in comings if isinstance(coming, Coming))
        nbytes, tenant = self._nbytes(record, tier), self._index.tenant_of(record.namespace)
        return Going(tier, key, nbytes, tenant, demotions)

    def _wanting(self, record: Record) -> list[Tier]:
        """Return the tiers that take a block which memory evicts."""
        return [
            tier
            for tier in self._tiers.values()
            if tier.config.write_mode is WriteMode.BACK
            and not isinstance(tier, MemoryTier)
            and not record.tiers >> tier.bit & 1
            and tier.is_writable()
            and tier.would_admit(record)
        ]

    def _may_repin(self, pin: Pin, nbytes: int) -> bool:
        """Say whether a pin may go with its block to the target, where that occupies ``nbytes``."""
        left_bytes = self._index.pin_bytes_left(pin.tenant) - self._charges[pin.tenant]
        is_affordable = nbytes - pin.charged_bytes <= max(0, left_bytes)
        return is_affordable and self._forecasts[self._errand.target.bit].may_pin(nbytes)

    def _repin(self, pin: Pin, source: Tier, nbytes: int) -> None:
        self._forecasts[self._errand.target.bit].pin(nbytes)
        self._forecasts[source.bit].pin(-pin.charged_bytes)
        self._charges[pin.tenant] += nbytes - pin.charged_bytes

    def _nbytes(self, record: Record, tier: Tier) -> int:
        return self._index.nbytes_in(record, [tier.bit])[tier.bit]


def effects_of(step: Carrying, *, leaves_source: bool) -> Iterator[Effect]:
    """Yield what happens when one step of a plan is carried out."""
    if step.coming is not None:
        yield from _arrival(step.coming)
    if leaves_source:
        yield Effect(Kind.LEAVES, step.key, step.source.name, step.nbytes, step.tenant)


def effect(kind: Kind, step: Going | Coming) -> Effect:
    """Return one part of a plan as what happens."""
    return Effect(kind, step.key, step.tier.name, step.nbytes, step.tenant)


def _arrival(coming: Coming) -> Iterator[Effect]:
    for going in coming.victims:
        for demotion in going.demotions:
            yield from (effect(Kind.EVICTED, before) for before in demotion.victims)
        yield effect(Kind.EVICTED, going)
        yield from (effect(Kind.DEMOTED, demotion) for demotion in going.demotions)
    yield effect(Kind.ARRIVES, coming)
