"""Who may keep what, and for how long: rules for tenants, namespaces and prefixes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvstore.errors import ConfigError

MAX_LIFETIME_S = 100 * 365 * 86_400
"""A century: who wants blocks for longer names no end at all."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long blocks live, in seconds; ``None``: this rule does not say.

    ``ttl_s`` counts from the last use, and gives way to what a request names itself. ``hard_ttl_s`` counts
    from the first write, and nothing puts it off. Raises ``ConfigError`` for what is no such time.
    """

    ttl_s: float | None = None
    hard_ttl_s: float | None = None

    def __post_init__(self) -> None:
        for name, value_s in (("ttl_s", self.ttl_s), ("hard_ttl_s", self.hard_ttl_s)):
            if value_s is not None and not 0 < value_s <= MAX_LIFETIME_S:
                raise ConfigError(name, f"must be above 0 and at most {MAX_LIFETIME_S} seconds")


@dataclass(frozen=True, slots=True)
class TenantRule:
    """What one tenant may keep. Raises ``ConfigError`` for negative bytes.

    ``quotas`` bound its bytes in a tier, by the tier's name; ``pin_bytes`` what it may pin in all of them
    together. Without either the tiers' own budgets are the only bounds, and nothing may be pinned.
    """

    lifetime: Lifetime = field(default_factory=Lifetime)
    quotas: Mapping[str, int] = field(default_factory=dict)
    pin_bytes: int = 0

    def __post_init__(self) -> None:
        if self.pin_bytes < 0 or any(quota < 0 for quota in self.quotas.values()):
            raise ConfigError("tenant", "a quota or pin budget must not be negative")


@dataclass(frozen=True, slots=True)
class Retention:
    """All rules. A tenant is named by a digest: ``Namespace.tenant``, empty for requests without a salt.

    ``others`` holds for each tenant that ``tenants`` does not name. ``namespaces`` bound the bytes of a
    namespace (its digest) in a tier, by the tier's name. ``prefixes`` say how long the blocks of a prompt
    live that begins with a prefix, named by the key of its last whole block, and all that follows them.
    Of several soft limits the most particular counts: request, longest prefix, tenant, tier, store; of
    several hard ones the earliest.
    """

    others: TenantRule = field(default_factory=TenantRule)
    tenants: Mapping[str, TenantRule] = field(default_factory=dict)
    namespaces: Mapping[bytes, Mapping[str, int]] = field(default_factory=dict)
    prefixes: Mapping[bytes, Lifetime] = field(default_factory=dict)

    def tenant(self, digest: str) -> TenantRule:
        """Return the rule for a tenant."""
        return self.tenants.get(digest, self.others)
