"""What a store is set up with, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvstore.defaults import ttl_ms
from kvstore.errors import ConfigError
from kvstore.retention import MAX_LIFETIME_S, Retention
from kvstore.seams import Lending
from kvstore.tier import DEVICE, TierSpec, WriteMode


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Times of the store as a whole.

    ``default_ttl_s`` is the soft TTL of uses that name none; ``None``: no end. ``tier_ttls_s`` are other
    defaults, by the tier's name: a block may end in one tier and live on in another. ``audit_share`` of
    the blocks in our own memory, chosen by key, carry a checksum that each load verifies. ``retention``
    says who may keep what, and for how long.
    """

    default_ttl_s: float | None = 24 * 3600.0
    tier_ttls_s: Mapping[str, float | None] = field(default_factory=dict)
    lease_s: float = 30.0
    audit_share: float = 1 / 64
    retention: Retention = field(default_factory=Retention)

    def __post_init__(self) -> None:
        ttls_s = {f"{name}_ttl_s": ttl_s for name, ttl_s in self.tier_ttls_s.items()}
        for name, ttl_s in {"default_ttl_s": self.default_ttl_s, **ttls_s}.items():
            if ttl_s is not None and not 0 < ttl_s <= MAX_LIFETIME_S:
                reason = f"must be positive and at most {MAX_LIFETIME_S} seconds, or unset for no end"
                raise ConfigError(name, reason)
        if not 0 <= self.audit_share <= 1:
            raise ConfigError("audit_share", "must lie between 0 and 1")

    def ttls_ms(self, tiers: Sequence[str]) -> list[int]:
        """Return the default TTL in each of ``tiers``. Raises ``ConfigError`` for one of another tier."""
        for name in self.tier_ttls_s:
            if name not in tiers:
                raise ConfigError(f"{name}_ttl_s", f"{name!r} is not one of {', '.join(tiers)}")
        return [ttl_ms(self.tier_ttls_s.get(name, self.default_ttl_s)) for name in tiers]


@dataclass(frozen=True, slots=True)
class DeviceTier:
    """What the engine's own pool may hold; it reports which blocks it does.

    ``is_elsewhere``: the pools are those of engines in other processes. What they have is nothing to look up
    here, but ends as what is here.
    """

    budget_bytes: int = 0
    block_bytes: int = 0
    is_elsewhere: bool = False


def refuse_odd_tiers(tiers: Sequence[TierSpec]) -> None:
    """Raise ``ConfigError`` for tiers that cannot stand in this order or under these names."""
    names = [spec.config.name for spec in tiers]
    if len(set(names)) != len(names):
        raise ConfigError("tiers", f"names must differ: {', '.join(names)}")
    if any(isinstance(spec.backend, Lending) for spec in tiers[1:]):
        raise ConfigError("tiers", "a tier in our own memory must be the first")
    is_below_memory = False
    for spec in tiers:
        if spec.config.write_mode is not WriteMode.THROUGH and not is_below_memory:
            reason = "must be through for a tier that is not below one in our own memory"
            raise ConfigError(f"{spec.config.name}_write", reason)
        is_below_memory = is_below_memory or isinstance(spec.backend, Lending)


def refuse_odd_quotas(retention: Retention, tiers: Sequence[TierSpec]) -> None:
    """Raise ``ConfigError`` for quotas of a tier that is not there, or that cannot have any."""
    can_have = {spec.config.name: spec.make_policy is not None for spec in tiers}
    rules = [rule.quotas for rule in (retention.others, *retention.tenants.values())]
    for quotas in (*rules, *retention.namespaces.values()):
        for tier, quota_bytes in quotas.items():
            if tier == DEVICE:
                raise ConfigError("quotas", "do not bound the engine's own pool: name another tier")
            if tier not in can_have:
                raise ConfigError("quotas", f"{tier!r} is not one of {', '.join(can_have)}")
            if not quota_bytes >= 0:
                raise ConfigError("quotas", f"must not be negative: {quota_bytes} bytes in {tier}")
            if not can_have[tier]:
                raise ConfigError("quotas", f"the tier {tier!r} has no make_policy, which quotas need")
