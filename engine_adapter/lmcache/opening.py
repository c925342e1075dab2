"""Opens the store of LMCache's server: another process's, or tiers of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from backends.redis_address import RedisAddress
from engine_adapter.lmcache.settings import AdapterSettings
from engine_adapter.opening import builtin_registry, memory_and_disk, open_tiers
from engine_adapter.serving_config import TierSetup
from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.connect import connect
from kvstore.errors import ConfigError
from kvstore.interface import BlockStore
from kvstore.store import TieredStore
from policies.admission import whole_blocks_that_fit

_ITEM_BYTES = 2


def open_store(settings: AdapterSettings) -> BlockStore:
    """Return the store. Raises ``ConfigError`` for a tier that cannot be opened, ``AccessError``."""
    if settings.store:
        return connect(settings.store, settings.token or None, memory_bytes=settings.staging_bytes)
    arena, clock = Arena(settings.host_bytes + settings.staging_bytes), Clock()
    setups = list(_setups(settings))
    opened = open_tiers(setups, arena, _ITEM_BYTES, builtin_registry(), clock, whole_blocks_that_fit)
    for tier, reason in opened.degraded.items():
        raise ConfigError(tier, reason)
    return TieredStore(opened.specs, arena, clock=clock)


def capacity_bytes(settings: AdapterSettings) -> int:
    """Return how much such a store keeps, of which upper tiers have copies; 0: a server knows."""
    return 0 if settings.store else max(setup.budget_bytes for setup in _setups(settings))


def _setups(settings: AdapterSettings) -> Iterator[TierSetup]:
    folder = Path(settings.disk_path).expanduser()
    yield from memory_and_disk(settings.host_bytes, settings.disk_bytes, folder)
    if settings.redis_url:
        address = RedisAddress.parse(settings.redis_url)
        yield TierSetup("redis", settings.redis_bytes, "lru", "through", address=address)
