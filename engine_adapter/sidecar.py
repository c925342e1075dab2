"""A store of its own, for engines in other processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine_adapter.opening import (
    BYTES_OF_A_NUMBER,
    CLOSE_S,
    builtin_registry,
    host_bytes_of,
    open_tiers,
    store_config,
)
from engine_adapter.serving_config import SidecarConfig
from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.registry import Registry
from kvstore.remote.server import SocketConfig, SocketServer
from kvstore.remote.tenancy import Authenticate, Owners, open_to_all
from kvstore.shared_memory import map_shared_slab
from kvstore.store import DeviceTier, TieredStore
from policies.admission import whole_blocks_that_fit

_STAGING_BYTES = 256 << 20
_SLAB_BYTES = 8 << 20


@dataclass(frozen=True)
class Sidecar:
    """A store at work. ``degraded`` says of each tier that it runs without why."""

    store: TieredStore
    owners: Owners
    server: SocketServer | None
    degraded: Mapping[str, str]

    @property
    def broken(self) -> Mapping[str, str]:
        """Say of what has died why nothing goes on without it."""
        if self.server is None or self.server.is_accepting:
            return {}
        return {"socket": "it lets nobody in, its thread has died: restart the server"}

    def close(self) -> None:
        """Send all clients away, write what is queued and close the tiers; bounded in time."""
        if self.server is not None:
            self.server.close()
        self.store.close(CLOSE_S)


def open_sidecar(
    config: SidecarConfig,
    authenticate: Authenticate = open_to_all,
    registry: Registry | None = None,
    clock: Clock | None = None,
) -> Sidecar:
    """Open every tier that can be opened, and the socket. Raises ``ConfigError`` or ``PluginError``."""
    clock = clock or Clock()
    registry = registry or builtin_registry()
    budget_bytes = host_bytes_of(config.tiers) + _STAGING_BYTES
    arena = Arena(budget_bytes, _SLAB_BYTES, map_slab=map_shared_slab, spare_bytes=_STAGING_BYTES)
    opened = open_tiers(config.tiers, arena, BYTES_OF_A_NUMBER, registry, clock, whole_blocks_that_fit)
    owners = Owners()
    times = store_config(opened.specs, config.default_ttl_s, config.tier_ttls_s, config.retention)
    # Clients verify what they copy, so each block needs its checksum.
    verified = replace(times, audit_share=1.0)
    store = TieredStore(
        opened.specs, arena, verified, clock, DeviceTier(is_elsewhere=True), owner_of=owners.of
    )
    server = None
    if config.socket is not None:
        try:
            socket = SocketConfig(config.socket, config.socket_mode)
            server = SocketServer(store, arena, socket, authenticate, owners)
        except BaseException:
            store.close(CLOSE_S)
            raise
    return Sidecar(store, owners, server, opened.degraded)
