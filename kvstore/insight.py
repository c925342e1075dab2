"""What a store tells of its blocks, its tiers and itself."""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.absences import Absence, Cause
from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.keeping import KeepingIndex
from kvstore.overview import health_of, statistics_of
from kvstore.placement import Placement
from kvstore.recovery import Recovery
from kvstore.residents import fastest
from kvstore.shared_tier import SharedTier
from kvstore.statistics import Health, StoreStatistics
from kvstore.store_config import DeviceTier
from kvstore.sweeper import Sweeper
from kvstore.tier import Tier


class Insight:
    """The part of a store that only looks. Thread-safe; nothing of it blocks on a medium."""

    _tiers: tuple[Tier, ...]
    _names: tuple[str, ...]
    _index: KeepingIndex
    _placement: Placement
    _arena: Arena
    _device: DeviceTier
    _clock: Clock
    _sweeper: Sweeper
    _recovery: Recovery
    _closed: bool

    @property
    def tier_names(self) -> tuple[str, ...]:
        """All tiers from the fastest, the engine's own pool first."""
        return self._names

    @property
    def asks_media(self) -> bool:
        """Whether there are tiers that have to be asked what they hold (``inquire``)."""
        return any(isinstance(tier, SharedTier) for tier in self._tiers)

    def now_s(self) -> float:
        """Return the time on the clock that deadlines of leases and loads are told in."""
        return self._clock.monotonic_s()

    def peek(self, keys: Sequence[bytes]) -> tuple[str | None, ...]:
        """Return each block's fastest tier, ``None``: in no tier; nothing is leased, touched or extended."""
        masks = self._index.peek(keys, self._placement.findable_mask(), self._clock.wall_ms())
        return tuple(self._names[fastest(mask)] if mask else None for mask in masks)

    def why_absent(self, key: bytes) -> Absence:
        """Return what became of a block that a lookup does not find, as far as this process remembers."""
        mask = self._placement.findable_mask()
        cause, bit, at_ms = self._index.why_absent(key, mask, self._clock.wall_ms())
        is_nowhere = cause in {Cause.NEVER_STORED, Cause.QUARANTINED}
        return Absence(cause, "" if is_nowhere else self._names[bit], at_ms)

    def health(self) -> Health:
        """Return the state of every tier and the worst of them and of what looks after them."""
        keepers = self._sweeper.health(), self._recovery.health()
        return health_of(self._tiers, self._index, keepers, is_closed=self._closed)

    def statistics(self) -> StoreStatistics:
        """Return counts since the start and what each tier holds now, from the fastest."""
        return statistics_of(self._tiers, self._index, self._arena, self._device)

    def check(self) -> None:
        """Raise ``InvariantError`` when any of the books contradict each other."""
        self._index.check()
        self._arena.check()

    @property
    def num_holds(self) -> int:
        """Leases, loads and writes under way; zero when the store is at rest."""
        return self._index.num_holds
