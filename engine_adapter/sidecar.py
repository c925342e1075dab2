"""A store of its own, for engines in other processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backends.builtin import register_builtin as register_backends
from engine_adapter.opening import HOST, open_tiers
from engine_adapter.retaining import without_absent
from engine_adapter.serving_config import SidecarConfig
from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.registry import Registry
from kvstore.remote.server import SocketConfig, SocketServer
from kvstore.remote.tenancy import Authenticate, Owners, open_to_all
from kvstore.shared_memory import map_shared_slab
from kvstore.store import StoreConfig, TieredStore
from policies.admission import whole_blocks_that_fit
from policies.builtin import register_builtin as register_policies

_STAGING_BYTES = 256 << 20
_SLAB_BYTES = 8 << 20
_BYTES_OF_A_NUMBER = 2
_CLOSE_S = 10.0


@dataclass(frozen=True)
class Sidecar:
    """A store at work. ``degraded`` says of each tier that it runs without why."""

    store: TieredStore
    owners: Owners
    server: SocketServer | None
    degraded: Mapping[str, str]

    def close(self) -> None:
        """Send all clients away, write what is queued and close the tiers; bounded in time."""
        if self.server is not None:
            self.server.close()
        self.store.close(_CLOSE_S)


def open_sidecar(
    config: SidecarConfig,
    authenticate: Authenticate = open_to_all,
    registry: Registry | None = None,
    clock: Clock | None = None,
) -> Sidecar:
    """Open every tier that can be opened, and the socket. Raises ``ConfigError`` or ``PluginError``."""
    clock = clock or Clock()
    if registry is None:
        registry = Registry()
        register_backends(registry)
        register_policies(registry)
    host_bytes = sum(setup.budget_bytes for setup in config.tiers if setup.name == HOST)
    arena = Arena(host_bytes + _STAGING_BYTES, _SLAB_BYTES, map_slab=map_shared_slab)
    opened = open_tiers(config.tiers, arena, _BYTES_OF_A_NUMBER, registry, clock, whole_blocks_that_fit)
    names = {spec.config.name for spec in opened.specs}
    owners = Owners()
    store = TieredStore(
        opened.specs,
        arena,
        # Clients verify what they copy, so each block needs its checksum.
        StoreConfig(
            config.default_ttl_s,
            {tier: ttl_s for tier, ttl_s in config.tier_ttls_s.items() if tier in names},
            audit_share=1.0,
            retention=without_absent(config.retention, names),
        ),
        clock,
        owner_of=owners.of,
    )
    server = None
    if config.socket is not None:
        try:
            server = SocketServer(store, arena, SocketConfig(config.socket), authenticate, owners)
        except BaseException:
            store.close(_CLOSE_S)
            raise
    return Sidecar(store, owners, server, opened.degraded)
