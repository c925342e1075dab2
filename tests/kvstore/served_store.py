"""A store on media in a dictionary, under a clock that tests move, for any kind of client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from backends.host import HostBackend
from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.conformance.store import BLOCK_BYTES, conformance_config
from kvstore.remote.client import RemoteStore
from kvstore.remote.server import SocketConfig, SocketServer
from kvstore.remote.tenancy import Owners
from kvstore.remote.transport import Transport
from kvstore.shared_memory import map_shared_slab
from kvstore.store import DeviceTier, StoreConfig, TieredStore
from kvstore.tier import TierConfig, TierSpec
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU
from tests.eventually import eventually
from tests.kvstore.conftest import DictBackend


class ServedStore:
    """The store, and what its clients share with it."""

    def __init__(
        self,
        config: StoreConfig | None = None,
        *,
        is_remote: bool = True,
        host_blocks: int = 16,
        medium: DictBackend | None = None,
    ) -> None:
        self.now_s = 1000.0
        self.clock = Clock(lambda: self.now_s, lambda: round(self.now_s * 1000))
        self.medium = medium or DictBackend()
        self.owners = Owners()
        self.clients: list[RemoteStore] = []
        self.arena = Arena(
            (host_blocks + 8) * BLOCK_BYTES, slab_bytes=2 * BLOCK_BYTES, map_slab=map_shared_slab
        )
        host = TierConfig("host", host_blocks * BLOCK_BYTES)
        disk = TierConfig("disk", 64 * self.medium.footprint(BLOCK_BYTES))
        backends = (host, HostBackend(self.arena)), (disk, self.medium)
        specs = [TierSpec(tier, made, LeafFirstLRU(), whole_blocks_that_fit) for tier, made in backends]
        self.store = TieredStore(
            specs,
            self.arena,
            config or conformance_config(),
            self.clock,
            DeviceTier(is_elsewhere=is_remote),
            owner_of=self.owners.of,
        )

    def pass_s(self, seconds: float) -> None:
        """Let time pass for all."""
        self.now_s += seconds

    def on_socket(self, path: Path) -> SocketServer:
        """Serve it over a unix socket."""
        return SocketServer(
            self.store, self.arena, SocketConfig(path, staging_bytes=8 * BLOCK_BYTES), owners=self.owners
        )

    def client(self, transport: Transport) -> RemoteStore:
        """Return a client of it, closed with it."""
        client = RemoteStore(transport, self.clock)
        self.clients.append(client)
        return client

    def close(self, stop_serving: Callable[[], None] = lambda: None) -> None:
        """End all; nobody may hold anything, and all books must be in order."""
        for client in self.clients:
            client.close(2.0)
            client.check()
        stop_serving()
        eventually(lambda: self.store.num_holds == 0, 5.0)
        self.store.close(2.0)
        self.store.check()
