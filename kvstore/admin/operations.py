"""Evicting, moving and warming: planned first, and then carried out as planned."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from kvstore.admin.census import Census
from kvstore.admin.hauling import Hauler
from kvstore.admin.index import OperatedIndex
from kvstore.admin.outcome import Effect, Kind, Outcome, Stay, Why
from kvstore.admin.placement import OperatedPlacement
from kvstore.admin.planning import Errand, Planned, Planner, effects_of
from kvstore.admin.progress import Progress
from kvstore.admin.selection import BlockFilter
from kvstore.clock import Clock
from kvstore.record import Record
from kvstore.storing import Storing
from kvstore.tier import Tier

_WAIT_S = 0.5


class Operations:
    """What changes where blocks are. Thread-safe; blocks on the media, on the caller's thread."""

    def __init__(
        self, tiers: Sequence[Tier], index: OperatedIndex, placement: OperatedPlacement, storing: Storing,
        census: Census, clock: Clock,
    ) -> None:  # fmt: skip
        self._tiers = tuple(tiers)
        self._index = index
        self._placement = placement
        self._storing = storing
        self._census = census
        self._clock = clock

    def evict(
        self, wanted: BlockFilter, tiers: Sequence[Tier], *, dry_run: bool, progress: Progress
    ) -> Outcome:
        """Remove blocks from ``tiers``, those first that nothing follows."""
        keys = self._selected(wanted)
        planned = [
            step
            for steps in self._index.survey(lambda record: self._copies(record, tiers), keys[::-1])
            for step in steps
        ]
        missing = absent(wanted, keys)
        if dry_run:
            return _outcome(len(keys), planned, missing)
        for key in (*keys, *(stay.key for stay in missing)):
            self._placement.call_off(tiers, key)
        progress.begin(len(planned))
        done: list[Effect | Stay] = []
        for step in planned:
            if progress.is_cancelled:
                break
            done.append(self._evicted(step))
            progress.step()
        return _outcome(len(keys), done, missing, is_cancelled=len(done) < len(planned))

    def bring(self, wanted: BlockFilter, errand: Errand, *, dry_run: bool, progress: Progress) -> Outcome:
        """Bring blocks to a tier, those first that others follow."""
        now_ms = self._clock.wall_ms()
        keys = dict.fromkeys(self._selected(wanted))
        planned = Planner(errand, self._tiers, self._index, now_ms).plan(keys)
        missing = absent(wanted, keys)
        if dry_run:
            return _outcome(len(keys), _foretold(planned, errand), missing)
        hauler = Hauler(self._index, self._placement, self._storing, self._clock, now_ms)
        self._index.spared.spare(keys)
        try:
            is_cancelled = _carry_out(planned, errand, hauler, progress)
        finally:
            self._index.spared.unspare(keys)
        told: list[Effect | Stay] = [*hauler.effects, *hauler.stays]
        return _outcome(len(keys), told, missing, is_cancelled=is_cancelled)

    def _copies(self, record: Record, tiers: Sequence[Tier]) -> list[Effect | Stay]:
        """Return what becomes of each copy of a block that is to go; under the index's lock."""
        steps: list[Effect | Stay] = []
        tenant = self._index.tenant_of(record.namespace)
        nbytes = self._index.nbytes_in(record, [tier.bit for tier in tiers])
        for tier in tiers:
            if tier.bit in nbytes:
                why = self._index.why_kept(record, tier.bit)
                gone = Effect(Kind.LEAVES, record.key, tier.name, nbytes[tier.bit], tenant)
                steps.append(Stay(record.key, tier.name, why, record.raw_bytes) if why else gone)
        return steps or [Stay(record.key, "", Why.NOT_THERE, 0)]

    def _evicted(self, step: Effect | Stay) -> Effect | Stay:
        if isinstance(step, Stay):
            return step
        tier = next(tier for tier in self._tiers if tier.name == step.tier)
        why = self._placement.take_away(tier, step.key)
        return Stay(step.key, step.tier, why, step.nbytes) if why else step

    def _selected(self, wanted: BlockFilter) -> list[bytes]:
        """Return the blocks that are meant, each after the one that it follows.

        What is on its way to a medium is waited for, a moment: until it is there, nobody can select it.
        """
        for tier in self._placement.below_memory:
            tier.pool.flush(_WAIT_S)
        return self.root_first(self._census.select(wanted))

    def root_first(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return blocks in a stable order, each after the one that it follows."""
        parents = dict(self._index.survey(lambda record: (record.key, record.parent), sorted(keys)))
        ordered = dict[bytes, None]()
        for key in parents:
            path, ancestor = dict[bytes, None](), key
            while ancestor in parents and ancestor not in ordered and ancestor not in path:
                path[ancestor] = None  # a medium may tell of parents that go in a circle
                ancestor = parents[ancestor]
            ordered.update(dict.fromkeys(reversed(path)))
        return list(ordered)


def _carry_out(planned: Sequence[Planned], errand: Errand, hauler: Hauler, progress: Progress) -> bool:
    """Take one step after the other; says whether it was called off."""
    progress.begin(len(planned))
    for step in planned:
        if progress.is_cancelled:
            return True
        if isinstance(step, Stay):
            hauler.stays.append(step)
        else:
            hauler.carry(step, errand.target, leaves_source=errand.leaves_source)
        progress.step()
    return False


def _foretold(planned: Iterable[Planned], errand: Errand) -> Iterable[Effect | Stay]:
    for step in planned:
        if isinstance(step, Stay):
            yield step
        else:
            yield from effects_of(step, leaves_source=errand.leaves_source)


def absent(wanted: BlockFilter, found: Collection[bytes]) -> list[Stay]:
    """Return those that were asked for by their keys and are not there, or not meant by the rest."""
    there = set(found)
    return [Stay(key, "", Why.NOT_THERE, 0) for key in dict.fromkeys(wanted.keys or ()) if key not in there]


def _outcome(
    num_selected: int, told: Iterable[Effect | Stay], missing: Sequence[Stay], *, is_cancelled: bool = False
) -> Outcome:
    effects, stays = list[Effect](), list[Stay]()
    for each in told:
        if isinstance(each, Effect):
            effects.append(each)
        else:
            stays.append(each)
    return Outcome(num_selected, tuple(effects), (*missing, *stays), is_cancelled)
