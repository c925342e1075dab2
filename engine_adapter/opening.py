"""Opens tiers by name, from what is registered; needs no engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from backends.builtin import register_builtin as register_backends
from engine_adapter.retaining import without_absent
from engine_adapter.serving_config import TierSetup
from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.errors import BackendError, ConfigError
from kvstore.mapped_ahead import MappedAhead
from kvstore.registry import Kind, Registry
from kvstore.retention import Retention
from kvstore.seams import Admission
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import TierConfig, TierSpec, WriteMode
from policies.admission import whole_blocks_that_fit
from policies.builtin import register_builtin as register_policies

HOST = "host"
"""The tier in our own memory."""
CLOSE_S = 10.0
"""How long closing a store may take."""
BYTES_OF_A_NUMBER = 2
"""Of keys and values in engines of all kinds, for codecs."""
_SETTINGS = {"redis": "redis_url"}
_WITHOUT = "runs without this tier: "


def builtin_registry() -> Registry:
    """Return a registry with everything that comes with the project."""
    registry = Registry()
    register_backends(registry)
    register_policies(registry)
    return registry


class OpenTiers(NamedTuple):
    """Tiers for a store, and why those not there could not be opened."""

    specs: list[TierSpec]
    degraded: dict[str, str]


def open_tiers(
    setups: Sequence[TierSetup],
    arena: Arena,
    item_bytes: int,
    registry: Registry,
    clock: Clock,
    admission: Admission,
) -> OpenTiers:
    """Open what can be opened; a codec takes numbers of ``item_bytes``. Raises ``PluginError``."""
    opened = OpenTiers([], {})
    for setup in setups:
        try:
            opened.specs.append(_tier_spec(setup, arena, item_bytes, registry, clock, admission))
        except BackendError as error:
            opened.degraded[setup.name] = _WITHOUT + error.reason
    return opened


def memory_and_disk(
    host_bytes: int, disk_bytes: int, disk_path: Path, block_bytes: int = 0
) -> Iterator[TierSetup]:
    """Yield the tiers that a foreign engine's process has of its own; 0 bytes: none.

    Raises ``ConfigError`` for one without room for a block of ``block_bytes``.
    """
    for name, budget_bytes in ((HOST, host_bytes), ("disk", disk_bytes)):
        if 0 < budget_bytes < block_bytes:
            raise ConfigError(f"{name}_bytes", f"{budget_bytes} hold no block, which takes {block_bytes}")
    if host_bytes:
        yield TierSetup(HOST, host_bytes, "lru", "through")
    if disk_bytes:
        yield TierSetup("disk", disk_bytes, "lru", "through", path=disk_path)


def open_whole(setups: Sequence[TierSetup], staging_bytes: int) -> TieredStore:
    """Return a store in this process with memory for ``staging_bytes`` on their way; it runs with all tiers.

    Raises ``ConfigError`` for one that cannot be opened.
    """
    budget_bytes, clock = host_bytes_of(setups) + staging_bytes, Clock()
    arena = Arena(budget_bytes, map_slab=MappedAhead(), spare_bytes=staging_bytes)
    opened = open_tiers(setups, arena, BYTES_OF_A_NUMBER, builtin_registry(), clock, whole_blocks_that_fit)
    store = TieredStore(opened.specs, arena, clock=clock)
    require_all(opened.degraded, partial(store.close, CLOSE_S))
    return store


def require_all(degraded: Mapping[str, str], close: Callable[[], None]) -> None:
    """Close what was opened and raise ``ConfigError`` if a tier is ``degraded``."""
    for tier, reason in degraded.items():
        close()
        raise ConfigError(_SETTINGS.get(tier, f"{tier}_path"), reason.removeprefix(_WITHOUT))


def host_bytes_of(setups: Sequence[TierSetup]) -> int:
    """Return what the tier in our own memory may hold; 0: there is none."""
    return sum(setup.budget_bytes for setup in setups if setup.name == HOST)


def store_config(
    specs: Sequence[TierSpec],
    default_ttl_s: float | None,
    tier_ttls_s: Mapping[str, float | None],
    retention: Retention,
) -> StoreConfig:
    """Return times and rules for the tiers that were opened; those of others are left out."""
    names = {spec.config.name for spec in specs}
    return StoreConfig(
        default_ttl_s=default_ttl_s,
        tier_ttls_s={tier: ttl_s for tier, ttl_s in tier_ttls_s.items() if tier in names},
        retention=without_absent(retention, names),
    )


def _tier_spec(
    setup: TierSetup, arena: Arena, item_bytes: int, registry: Registry, clock: Clock, admission: Admission
) -> TierSpec:
    tier_config = TierConfig(setup.name, setup.budget_bytes, WriteMode(setup.write_mode))
    make_policy = registry.get(Kind.EVICTION, setup.eviction)
    codec = registry.get(Kind.CODEC, setup.codec)(item_bytes=item_bytes) if setup.codec else None
    options: dict[str, object] = {"path": setup.path}
    if setup.name == HOST:
        options = {"arena": arena}
    elif setup.address:
        options = {"address": setup.address, "clock": clock}
    backend = registry.get(Kind.BACKEND, setup.name)(**options)
    return TierSpec(tier_config, backend, make_policy(), admission, codec, make_policy)
