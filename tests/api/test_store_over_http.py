"""The store of a server that is reached over HTTP: the same meaning as one in this process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import httpx
import pytest

from backends.host import HostBackend
from kvstore.arena import Arena
from kvstore.connect import connect
from kvstore.errors import AccessError, ConfigError
from kvstore.remote.client import RemoteStore
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import TierConfig, TierSpec
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU
from tests.api.store_server import StoreServer
from tests.eventually import eventually
from tests.kvstore.conftest import DictBackend
from tests.remote_clients import NAMESPACE, Blocks, is_at_rest, keys_of

BLOCK_BYTES = 600_000
BLOCKS = Blocks(BLOCK_BYTES)
payload, put, got = BLOCKS.payload, BLOCKS.put, BLOCKS.got


@dataclass
class Site:
    """A store that is served on a free port, and its clients."""

    medium: DictBackend = field(default_factory=DictBackend)
    clients: list[RemoteStore] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        arena = Arena(24 * (BLOCK_BYTES + 4096))
        specs = [
            TierSpec(
                TierConfig("host", 16 * (BLOCK_BYTES + 4096)),
                HostBackend(arena),
                LeafFirstLRU(),
                whole_blocks_that_fit,
            ),
            TierSpec(TierConfig("disk", 1 << 26), self.medium, LeafFirstLRU(), whole_blocks_that_fit),
        ]
        self.store = TieredStore(specs, arena, StoreConfig(audit_share=1.0))

    def serve(self) -> None:
        """Answer requests, on the port of before if there was one."""
        self.server = StoreServer(self.store, self.port)
        self.port = self.server.port

    def stop(self) -> None:
        """Answer no more."""
        self.server.close()

    def connect(self, token: str | None = None) -> RemoteStore:
        """Return a new client."""
        client = connect(f"http://127.0.0.1:{self.port}", token, memory_bytes=16 * (BLOCK_BYTES + 4096))
        self.clients.append(client)
        return client


@pytest.fixture
def site() -> Iterator[Site]:
    """Return a place; in the end all is at rest and in order."""
    site = Site()
    site.serve()
    yield site
    for client in site.clients:
        client.close(2.0)
        client.check()
    site.stop()
    eventually(partial(is_at_rest, site.store))
    site.store.close(2.0)
    site.store.check()


def test_tenants_do_not_see_each_other_and_roles_bound_what_may_be_done(site: Site) -> None:
    one, other, reader, admin = map(site.connect, ("token-a", "token-b", "token-reader", "token-admin"))
    mine = keys_of(one, 2)
    put(one, mine)
    assert one.flush(5.0)
    assert keys_of(other, 2) != mine == keys_of(reader, 2)
    assert other.lookup(mine).tiers == (None, None)
    assert (other.peek(mine), other.evict(mine)) == ((None, None), 0)
    assert got(reader, mine[0]) == bytes(payload(0))
    operators = keys_of(admin, 2)
    put(one, operators, 8)
    assert one.flush(5.0)
    assert got(admin, operators[0]) is None, "whoever guesses keys stores nothing for others under them"
    one.evict(operators)
    with pytest.raises(AccessError, match="role data"):
        reader.evict(mine)
    assert put(reader, keys_of(reader, 1, 900)) == 0
    with pytest.raises(AccessError, match="role admin"):
        one.clear()
    assert admin.clear() == 2
    with pytest.raises(AccessError, match="the token is missing or wrong: ask the server's operator"):
        site.connect("c")


def test_a_client_goes_on_without_its_server_and_finds_it_again(site: Site) -> None:
    client = site.connect()
    keys = keys_of(client, 2)
    put(client, keys)
    assert client.flush(5.0)
    site.stop()
    assert client.lookup(keys).tiers == (None, None)
    assert put(client, keys) == 0
    assert "runs without its store" in client.health().reason
    site.serve()
    eventually(lambda: client.lookup(keys).tiers == ("host", "host"))
    assert got(client, keys[1]) == bytes(payload(1))


def test_without_any_server_everything_misses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = connect(f"http://127.0.0.1:{port}")
    assert not client.is_connected
    assert client.lookup([bytes(16)]).tiers == (None,)
    client.close()


def test_bodies_of_another_length_are_refused_and_leave_nothing(site: Site) -> None:
    url, headers = f"http://127.0.0.1:{site.port}/store", {"X-Prefixd-Client": "raw"}
    httpx.post(f"{url}/namespaces", headers=headers, json={"manifest": NAMESPACE.manifest()})
    for body in (b"", b"x" * 99, b"x" * 101, b"x" * 200_000):
        offered = {"namespace": NAMESPACE.digest.hex(), "key": "ab" * 16, "nbytes": 100}
        number = httpx.post(f"{url}/reservations", headers=headers, json=offered).json()["reservation"]
        assert number
        assert httpx.put(f"{url}/reservations/{number}", headers=headers, content=body).status_code == 400
        assert httpx.put(f"{url}/reservations/{number}", headers=headers, content=body).status_code == 404
    assert site.store.statistics().staging_bytes == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("lookups", {"keys": ["zz"]}),
        ("lookups", {"keys": ["ab" * 17]}),
        ("lookups", {"keys": [], "lease_s": -1}),
        ("lookups", {"keys": [], "ttl_s": 1e30}),
        ("namespaces", {"manifest": "{}"}),
        ("clear", {"tier": "attic"}),
        ("reservations", {"namespace": "ab" * 16, "key": "ab" * 16, "nbytes": 0}),
        ("flush", {"timeout_s": 1e9}),
    ],
)
def test_odd_bodies_are_refused_with_a_reason(site: Site, path: str, body: dict[str, object]) -> None:
    url = f"http://127.0.0.1:{site.port}/store/{path}"
    answer = httpx.post(url, headers={"X-Prefixd-Client": "raw"}, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("address", ["", "http://", "http://:1", "ftp://host", "http://host:99999", "host:1"])
def test_odd_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="address"):
        connect(address)
