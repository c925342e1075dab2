"""What earlier runs left on the media: entered at start, completed by a scan in the background."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from threading import Event, Thread

from kvstore.clock import Clock
from kvstore.errors import one_line
from kvstore.frame import Header
from kvstore.keeping import KeepingIndex
from kvstore.manifests import MAX_KNOWN, parse
from kvstore.placement import Placement
from kvstore.record import Record, ends_in, record_of
from kvstore.shared_tier import SharedTier
from kvstore.statistics import State, TierHealth
from kvstore.tier import Tier

_log = logging.getLogger(__name__)


class Recovery:
    """Enters blocks that are there already. Nothing is read here: a load verifies what it reads."""

    def __init__(
        self, tiers: Sequence[Tier], index: KeepingIndex, placement: Placement, clock: Clock
    ) -> None:
        self._tiers = tuple(tiers)
        self._index = index
        self._placement = placement
        self._clock = clock
        self._stopping = Event()
        self._fault = ""

    def health(self) -> TierHealth:
        """Say whether all could be found."""
        return TierHealth(State.DEGRADED if self._fault else State.OK, self._fault)

    def start(self) -> None:
        """Enter what the backends know, then let them look for more in the background."""
        for tier in self._tiers:
            if self._index.must_know_tenants and not isinstance(tier, SharedTier):
                self._meet_tenants(tier)
            tier.recover(partial(self._enter, tier, True))
        self._apply_rules()
        for tier in self._tiers:
            Thread(target=self._scan, args=(tier,), name=f"{tier.name}-scan", daemon=True).start()

    def stop(self) -> None:
        """Ask the scans to end; does not wait."""
        self._stopping.set()

    def _scan(self, tier: Tier) -> None:
        """Learn whose the blocks are, and find those that are not known yet."""
        try:
            self._meet_tenants(tier)
            tier.discover(partial(self._enter, tier, False), self._stopping.is_set)
            self._apply_rules()
        except Exception as error:  # noqa: BLE001  a thread's end is silent: health tells of it
            _log.exception("the scan of tier %s was broken off", tier.name)
            self._fault = f"the scan of tier {tier.name} was broken off: {one_line(error)}"

    def _meet_tenants(self, tier: Tier) -> None:
        """Read the manifests of a medium; blocks on it."""
        for namespace in filter(None, map(parse, tier.manifests(MAX_KNOWN))):
            self._placement.rewrite_headers(self._index.register(namespace))

    def _apply_rules(self) -> None:
        """Let rules for prefixes hold for what follows blocks that were entered after it."""
        self._placement.rewrite_headers(self._index.apply_rules())

    def _enter(self, tier: Tier, evict: bool, header: Header) -> None:
        """Enter one block, most recent last: with ``evict`` older ones make way for it."""
        facts = _facts(tier, header)
        footprint, now_s = tier.footprint(header.stored_bytes), self._clock.monotonic_s()
        is_alive = not header.expiry.is_over(self._clock.wall_ms())
        if is_alive and self._index.recovered(tier.bit, facts, footprint, now_s):
            self._index.restore_pin(tier.bit, header.key, header.pinned_ms)
            return
        if is_alive and evict:
            room = self._placement.make_room(tier, facts, header.stored_bytes)
            if room is not None:
                self._index.settle(tier.bit, room, facts, now_s)
                self._index.restore_pin(tier.bit, header.key, header.pinned_ms)
                return
        self._placement.reject(tier, header.key)


def _facts(tier: Tier, header: Header) -> Record:
    """Return what ``header`` tells of its block; of one that cannot be read here nothing but its end."""
    if tier.knows(header):
        return record_of(header)
    ends = header.expiry
    named_ms = ends_in(ends.soft_ms) if header.is_of_this_version else 0
    hard_ms = ends_in(ends.hard_ms)
    return Record(header.key, b"", named_ms=named_ms, hard_ms=hard_ms, unreadable=1 << tier.bit)
