"""What Prometheus reads of a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from api.families import counter, counters, gauge, gauges
from kvstore.statistics import Count, State, StoreStatistics, TierHealth
from kvstore.store import TieredStore

_GROUP_LABELS = ("tier", "scope", "name")
_SHOWN_CHARACTERS = 12
_STATE_LEVELS = {State.OK: 0, State.DEGRADED: 1, State.UNHEALTHY: 2}


class StoreCollector(Collector):
    """Reads a store's statistics whenever somebody scrapes."""

    def __init__(self, store: TieredStore) -> None:
        self._store = store

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        return store_metrics(self._store)


def store_metrics(store: TieredStore) -> Iterator[Metric]:
    """Yield all that a store tells of itself."""
    statistics = store.statistics()
    yield from _store_metrics(statistics)
    yield from _keeping_metrics(statistics)
    yield _state_metric(store.health().tiers)


def _store_metrics(store: StoreStatistics) -> Iterator[Metric]:
    tiers = store.tiers
    yield gauges("tier_bytes", "Bytes a tier holds.", {tier.name: tier.used_bytes for tier in tiers})
    yield gauges(
        "tier_budget_bytes", "Bytes a tier may hold.", {tier.name: tier.budget_bytes for tier in tiers}
    )
    yield gauges("tier_blocks", "Blocks a tier holds.", {tier.name: tier.num_blocks for tier in tiers})
    for count in Count.ALL:
        counted = {tier.name: tier.counts[count] for tier in tiers if count in tier.counts}
        yield counters(f"tier_{count}", f"What tiers counted as {count}.", "tier", counted)
    yield counter("lookup_blocks", "Blocks that were looked up.", store.num_blocks_wanted)
    yield counter("lookup_hit_blocks", "Blocks that were looked up and found.", store.num_blocks_found)
    yield gauge("quarantined_blocks", "Wrong blocks that are kept out.", store.num_quarantined)
    yield gauge("staging_bytes", "Host memory of loads and writes under way.", store.staging_bytes)


def _keeping_metrics(store: StoreStatistics) -> Iterator[Metric]:
    """Yield who uses how much of quotas and pin budgets, named by the digests of salts and namespaces."""
    used = GaugeMetricFamily("prefixd_quota_used_bytes", "Bytes that count.", labels=_GROUP_LABELS)
    quota = GaugeMetricFamily("prefixd_quota_bytes", "Bytes that may be.", labels=_GROUP_LABELS)
    for tier in store.tiers:
        for group in tier.groups:
            labels = [tier.name, group.scope, _shown(group.name)]
            used.add_metric(labels, group.used_bytes)
            quota.add_metric(labels, group.quota_bytes)
    yield from (used, quota)
    yield gauges("tier_pinned_bytes", "Bytes pinned.", {tier.name: tier.pinned_bytes for tier in store.tiers})
    pinned = {_shown(pins.tenant): pins.pinned_bytes for pins in store.pins}
    yield gauges("pinned_bytes", "Bytes pinned in all tiers.", pinned, "tenant")
    budgets = {_shown(pins.tenant): pins.budget_bytes for pins in store.pins}
    yield gauges("pin_budget_bytes", "Bytes that may be pinned.", budgets, "tenant")


def _shown(digest: str) -> str:
    """Return the name of a tenant or namespace in a label; a salt itself is never known here."""
    return digest[:_SHOWN_CHARACTERS] or "unsalted"


def _state_metric(tiers: Mapping[str, TierHealth]) -> Metric:
    levels = {name: _STATE_LEVELS[tier.state] for name, tier in tiers.items()}
    return gauges("tier_state", "0: fine, 1: degraded (/health says why), 2: unusable.", levels)
