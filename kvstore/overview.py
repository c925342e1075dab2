"""What a store says of itself: its health and its statistics."""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.arena import Arena
from kvstore.keeping import KeepingIndex
from kvstore.statistics import Count, Health, State, StoreStatistics, TierHealth, TierStatistics
from kvstore.store_config import DeviceTier
from kvstore.tier import DEVICE, DEVICE_BIT, MemoryTier, Tier


def health_of(
    tiers: Sequence[Tier], index: KeepingIndex, keepers: Sequence[TierHealth], *, is_closed: bool
) -> Health:
    """Return the state of every tier and the worst of them; blocks in quarantine are bad enough.

    ``keepers`` are what looks after all of them.
    """
    states = {tier.name: tier.health(len(index.stuck(tier.bit))) for tier in tiers}
    if is_closed:
        states = dict.fromkeys(states, TierHealth(State.UNHEALTHY, "closed"))
    num = index.num_quarantined
    told = f"{num} blocks that are wrong, or were computed on wrong ones, are in quarantine"
    quarantine = TierHealth(State.DEGRADED, f"{told}: find the cause, then clear the store")
    general = [keeper for keeper in keepers if keeper.reason] + [quarantine] * bool(num)
    worst = max((one.state for one in (*states.values(), *general)), key=list(State).index, default=State.OK)
    return Health(worst, states, "; ".join(one.reason for one in general))


def statistics_of(
    tiers: Sequence[Tier], index: KeepingIndex, arena: Arena, device: DeviceTier
) -> StoreStatistics:
    """Return counts since the start and what each tier holds now, from the fastest."""
    _, num_on_device = index.usage(DEVICE_BIT)
    entries = [TierStatistics(DEVICE, device.budget_bytes, num_on_device * device.block_bytes, num_on_device)]
    entries += [_statistics_of(tier, index) for tier in tiers]
    in_memory = sum(index.usage(tier.bit)[0] for tier in tiers if isinstance(tier, MemoryTier))
    staging_bytes = max(0, arena.used_bytes - in_memory)
    return StoreStatistics(
        tuple(entries), index.num_wanted, index.num_found, staging_bytes, index.num_quarantined,
        index.pins_by_tenant(),
    )  # fmt: skip


def _statistics_of(tier: Tier, index: KeepingIndex) -> TierStatistics:
    used_bytes, num_blocks = index.usage(tier.bit)
    num_pinned, pinned_bytes = index.pinned(tier.bit)
    counts = tier.counters.snapshot() | {Count.OVER_QUOTA: index.num_over_quota(tier.bit)}
    return TierStatistics(
        tier.name, tier.config.budget_bytes, used_bytes, num_blocks, counts, index.groups(tier.bit),
        pinned_bytes, num_pinned, tier.is_draining,
    )  # fmt: skip
