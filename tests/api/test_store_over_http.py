"""The store of a server that is reached over HTTP: the same meaning as one in this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from api.gate import Gate
from api.http_errors import install_error_handlers
from api.store.service import add_store_routes
from backends.host import HostBackend
from kvstore.arena import Arena
from kvstore.connect import connect
from kvstore.errors import AccessError, ConfigError, LeaseExpiredError
from kvstore.remote.client import RemoteStore
from kvstore.remote.tenancy import Tenant
from kvstore.statistics import State
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import TierConfig, TierSpec
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU
from tests.eventually import eventually
from tests.kvstore.conftest import DictBackend
from tests.remote_clients import NAMESPACE, Blocks, by_token, is_at_rest, keys_of

BLOCK_BYTES = 600_000
BLOCKS = Blocks(BLOCK_BYTES)
payload, put, got = BLOCKS.payload, BLOCKS.put, BLOCKS.got


def authenticate(token: str | None) -> Tenant:
    """Return whose a request is."""
    return by_token(token) if token else Tenant()


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
        app = FastAPI()
        app.add_middleware(Gate, authenticate=authenticate, max_body_bytes=1 << 24)
        install_error_handlers(app)
        self.context = add_store_routes(app, self.store)
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none", lifespan="off"))
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        self.thread = threading.Thread(target=self.server.run, args=([listener],))
        self.thread.start()
        eventually(lambda: self.server.started)

    def stop(self) -> None:
        """Answer no more."""
        self.server.should_exit = True
        self.server.force_exit = True
        self.thread.join(20)
        self.context.close()

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


def test_what_one_client_stores_another_one_loads(site: Site) -> None:
    writer, reader = site.connect(), site.connect()
    keys = keys_of(writer, 3)
    assert put(writer, keys) == 3
    assert writer.flush(5.0)
    assert [got(reader, key) for key in keys] == [bytes(payload(number)) for number in range(3)]
    hit = reader.lookup([*keys, bytes(16)])
    assert hit.tiers == ("host", "host", "host", None)
    tickets = [reader.load(hit, index, hit.deadline_s) for index in range(4)]
    assert all(ticket.wait(5.0) for ticket in tickets)
    blocks = [ticket.take() for ticket in tickets]
    assert [block and (bytes(block.data[:1]), block.tier) for block in blocks] == [
        (b"\0", "host"),
        (b"\1", "host"),
        (b"\2", "host"),
        None,
    ]
    for block in blocks:
        if block is not None:
            block.release()
    hit.release()
    assert put(writer, keys) == 0, "they are there"


def test_blocks_come_from_the_disk_too(site: Site) -> None:
    client = site.connect()
    keys = keys_of(client, 2)
    put(client, keys)
    assert client.flush(5.0)
    site.store.clear("host")
    assert client.peek(keys) == ("disk", "disk")
    assert got(client, keys[1]) == bytes(payload(1))


def test_a_client_finds_at_once_what_it_has_stored_itself(site: Site) -> None:
    client = site.connect()
    for number in range(6):
        keys = keys_of(client, 1, 100 * number)
        assert put(client, keys, number) == 1
        assert client.lookup(keys).tiers == ("host",)


def test_leases_end(site: Site) -> None:
    client = site.connect()
    keys = keys_of(client, 1)
    put(client, keys)
    hit = client.lookup(keys, lease_s=0.05)
    assert site.store.num_holds > 0
    eventually(lambda: client.now_s() >= hit.deadline_s)
    with pytest.raises(LeaseExpiredError):
        client.load(hit, 0, client.now_s() + 1.0)
    site.store.lookup([]).release()
    eventually(partial(is_at_rest, site.store))


def test_questions(site: Site) -> None:
    client = site.connect()
    keys = keys_of(client, 2)
    assert client.why_absent(keys[0]).cause.value == "never stored"
    put(client, keys)
    client.flush(5.0)
    assert client.health().state is State.OK
    assert [tier.name for tier in client.statistics().tiers] == ["device", "host", "disk"]
    assert [namespace.digest for namespace in client.known_namespaces()] == [NAMESPACE.digest]
    assert client.evict(keys[1:]) == 1
    assert client.why_absent(keys[1]).cause.value == "cleared"
    client.quarantine(keys[0])
    assert client.ended(keys) == [keys[0]]
    assert client.lookup(keys).tiers == (None, None)
    assert client.clear() == 0
    assert put(client, keys) == 2


def test_tenants_do_not_see_each_other_and_roles_bound_what_may_be_done(site: Site) -> None:
    one, other, reader, admin = map(site.connect, ("token-a", "token-b", "token-reader", "token-admin"))
    mine = keys_of(one, 2)
    put(one, mine)
    assert one.flush(5.0)
    assert keys_of(other, 2) != mine == keys_of(reader, 2)
    assert other.lookup(mine).tiers == (None, None)
    assert (other.peek(mine), other.evict(mine)) == ((None, None), 0)
    assert got(reader, mine[0]) == bytes(payload(0))
    with pytest.raises(AccessError, match="role data"):
        reader.evict(mine)
    assert put(reader, keys_of(reader, 1, 900)) == 0
    with pytest.raises(AccessError, match="role admin"):
        one.clear()
    assert admin.clear() == 2
    with pytest.raises(AccessError, match="send the server's token"):
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
