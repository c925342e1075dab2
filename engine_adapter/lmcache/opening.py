"""Opens the store of LMCache's server: another process's, or tiers of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from backends.redis_address import RedisAddress
from engine_adapter.lmcache.settings import AdapterSettings
from engine_adapter.opening import memory_and_disk, open_whole
from engine_adapter.serving_config import TierSetup
from kvstore.connect import connect
from kvstore.interface import BlockStore


def open_store(settings: AdapterSettings) -> BlockStore:
    """Return the store. Raises ``ConfigError`` for a tier that cannot be opened, ``AccessError``."""
    if settings.store:
        return connect(settings.store, settings.token or None, memory_bytes=settings.staging_bytes)
    return open_whole(list(_setups(settings)), settings.staging_bytes)


def capacity_bytes(settings: AdapterSettings) -> int:
    """Return how much such a store keeps, of which upper tiers have copies; 0: a server knows."""
    return 0 if settings.store else max(setup.budget_bytes for setup in _setups(settings))


def _setups(settings: AdapterSettings) -> Iterator[TierSetup]:
    folder = Path(settings.disk_path).expanduser()
    yield from memory_and_disk(settings.host_bytes, settings.disk_bytes, folder)
    if settings.redis_url:
        address = RedisAddress.parse(settings.redis_url)
        yield TierSetup("redis", settings.redis_bytes, "lru", "through", address=address)
