"""Opens the store of an engine: a server's, or tiers of its own that both of its sides share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from engine_adapter.opening import HOST, builtin_registry, open_tiers
from engine_adapter.serving_config import TierSetup
from engine_adapter.vllm.settings import AdapterSettings
from kvstore.arena import Arena, slot_stride
from kvstore.clock import Clock
from kvstore.connect import connect
from kvstore.errors import ConfigError
from kvstore.interface import BlockStore
from kvstore.store import TieredStore
from policies.admission import whole_blocks_that_fit

MOST_ON_WAY = 64
"""Blocks that may be on their way at a time; a store of our own has staging memory for them."""
_STORED_MEANWHILE = 32
_CLOSE_S = 10.0
_ITEM_BYTES = 2


@dataclass(slots=True)
class _Shared:
    store: BlockStore
    num_users: int = 0


class OpenStores:
    """Stores of this process by engine. vLLM makes the two sides of a connector apart from each other."""

    def __init__(self) -> None:
        self._stores: dict[str, _Shared] = {}
        self._lock = Lock()

    def open(self, engine: str, settings: AdapterSettings, block_bytes: int) -> BlockStore:
        """Return the engine's store; whoever comes first opens it. Raises ``ConfigError``."""
        with self._lock:
            if engine not in self._stores:
                self._stores[engine] = _Shared(_opened(settings, block_bytes))
            self._stores[engine].num_users += 1
            return self._stores[engine].store

    def has(self, engine: str) -> bool:
        """Say whether an engine's store is open in this process."""
        return engine in self._stores

    def close(self, engine: str) -> None:
        """Part with an engine's store; whoever goes last closes it."""
        with self._lock:
            shared = self._stores.get(engine)
            if shared is None:
                return
            shared.num_users -= 1
            if shared.num_users:
                return
            del self._stores[engine]
        shared.store.close(_CLOSE_S)


def _opened(settings: AdapterSettings, block_bytes: int) -> BlockStore:
    if settings.store:
        return connect(settings.store, settings.token or None, memory_bytes=2 * MOST_ON_WAY * block_bytes)
    staging_bytes = (MOST_ON_WAY + _STORED_MEANWHILE) * slot_stride(block_bytes)
    arena = Arena(settings.host_bytes + staging_bytes)
    clock = Clock()
    opened = open_tiers(
        list(_setups(settings)), arena, _ITEM_BYTES, builtin_registry(), clock, whole_blocks_that_fit
    )
    for tier, reason in opened.degraded.items():
        raise ConfigError(f"{tier}_path", reason)
    return TieredStore(opened.specs, arena, clock=clock)


def _setups(settings: AdapterSettings) -> Iterator[TierSetup]:
    if settings.host_bytes:
        yield TierSetup(HOST, settings.host_bytes, "lru", "through")
    if settings.disk_bytes:
        folder = Path(settings.disk_path).expanduser()
        yield TierSetup("disk", settings.disk_bytes, "lru", "through", path=folder)
