"""Opens the store of an engine: a server's, or tiers of its own that both of its sides share."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from engine_adapter.opening import CLOSE_S, memory_and_disk, open_whole, require_all
from engine_adapter.serving_config import SidecarConfig, TierSetup
from engine_adapter.sidecar import open_sidecar
from engine_adapter.vllm.settings import AdapterSettings
from kvstore.arena import slot_stride
from kvstore.connect import connect
from kvstore.errors import ConfigError
from kvstore.interface import BlockStore

MOST_ON_WAY = 64
"""Blocks that may be on their way at a time; a store of our own has staging memory for them."""
_STORED_MEANWHILE = 32


class _Opened(NamedTuple):
    store: BlockStore
    close: Callable[[], None]


class OpenStores:
    """Stores of this process by engine. vLLM makes the two sides of a connector apart from each other."""

    def __init__(self) -> None:
        self._opened: dict[str, _Opened] = {}
        self._num_users: Counter[str] = Counter()
        self._lock = Lock()

    def open(
        self, engine: str, settings: AdapterSettings, block_bytes: int, *, is_served: bool = False
    ) -> BlockStore:
        """Return the store that the settings tell of, for a worker that comes first.

        One of this process's own is served to the engine's other processes if it ``is_served``. Raises
        ``ConfigError``.
        """
        return self._used(engine, lambda: _opened(engine, settings, block_bytes, is_served=is_served))

    def join(self, engine: str, settings: AdapterSettings, block_bytes: int) -> BlockStore:
        """Return the store that a worker has opened, in this process or another. Raises ``ConfigError``."""
        address = settings.store or f"unix://{_socket_of(engine)}"
        return self._used(engine, lambda: _connected(address, settings, block_bytes))

    def close(self, engine: str) -> None:
        """Part with an engine's store; whoever goes last closes it."""
        with self._lock:
            self._num_users[engine] -= 1
            if self._num_users[engine] > 0:
                return
            del self._num_users[engine]
            opened = self._opened.pop(engine, None)
        if opened is not None:
            opened.close()

    def _used(self, engine: str, make: Callable[[], _Opened]) -> BlockStore:
        with self._lock:
            if engine not in self._opened:
                self._opened[engine] = make()
            self._num_users[engine] += 1
            return self._opened[engine].store


def _opened(engine: str, settings: AdapterSettings, block_bytes: int, *, is_served: bool) -> _Opened:
    if settings.store:
        return _connected(settings.store, settings, block_bytes)
    setups = tuple(_setups(settings))
    for setup in setups:
        if setup.budget_bytes < block_bytes:
            raise ConfigError(f"{setup.name}_bytes", f"is less than one block, of {block_bytes} bytes")
    if is_served:
        sidecar = open_sidecar(SidecarConfig(setups, settings.ttl_s, {}, _socket_of(engine)))
        require_all(sidecar.degraded, sidecar.close)
        return _Opened(sidecar.store, sidecar.close)
    store = open_whole(setups, (MOST_ON_WAY + _STORED_MEANWHILE) * slot_stride(block_bytes))
    return _Opened(store, partial(store.close, CLOSE_S))


def _connected(address: str, settings: AdapterSettings, block_bytes: int) -> _Opened:
    store = connect(address, settings.token or None, memory_bytes=2 * MOST_ON_WAY * block_bytes)
    return _Opened(store, partial(store.close, CLOSE_S))


def _setups(settings: AdapterSettings) -> Iterator[TierSetup]:
    folder = Path(settings.disk_path).expanduser()
    return memory_and_disk(settings.host_bytes, settings.disk_bytes, folder)


def _socket_of(engine: str) -> Path:
    """Return where the worker of an engine serves its store; only its own user may connect."""
    name = blake2b(engine.encode(), digest_size=12).hexdigest()
    return Path(tempfile.gettempdir()) / f"prefixd-{name}.sock"
