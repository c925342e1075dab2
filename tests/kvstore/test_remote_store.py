"""A store's server and its clients: who they are, what they may see, and what becomes of what they hold."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from io import BytesIO
from pathlib import Path

import pytest

from backends.host import HostBackend
from kvstore.absences import Cause
from kvstore.admin.selection import BlockFilter
from kvstore.arena import Arena
from kvstore.connect import connect
from kvstore.errors import AccessError, ConfigError, StoreClosedError
from kvstore.remote.client import RemoteStore
from kvstore.remote.link import Link
from kvstore.remote.server import SocketConfig, SocketServer
from kvstore.remote.socket_transport import SocketTransport
from kvstore.remote.tenancy import Authenticate, Owners, Tenant, open_to_all
from kvstore.shared_memory import map_shared_slab
from kvstore.statistics import State
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import TierConfig, TierSpec
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU
from tests.eventually import eventually
from tests.kvstore.conftest import DictBackend
from tests.remote_clients import NAMESPACE, Blocks, by_token, is_at_rest, keys_of

BLOCK_BYTES = 8192
BLOCKS = Blocks(BLOCK_BYTES)
payload, put, got = BLOCKS.payload, BLOCKS.put, BLOCKS.got


@dataclass
class Site:
    """A store that is served, and its clients."""

    folder: Path
    authenticate: Authenticate = open_to_all
    host_blocks: int = 8
    medium: DictBackend | None = None
    servers: list[SocketServer] = field(default_factory=list)
    stores: list[TieredStore] = field(default_factory=list)
    clients: list[RemoteStore] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """Where the socket is."""
        return self.folder / "store.sock"

    @property
    def store(self) -> TieredStore:
        """The store that is served."""
        return self.stores[-1]

    def serve(self) -> None:
        """Start a server over a new store."""
        arena = Arena(
            (self.host_blocks + 8) * BLOCK_BYTES, slab_bytes=2 * BLOCK_BYTES, map_slab=map_shared_slab
        )
        host = TierConfig("host", self.host_blocks * BLOCK_BYTES)
        specs = [TierSpec(host, HostBackend(arena), LeafFirstLRU(), whole_blocks_that_fit)]
        if self.medium is not None:
            disk = TierConfig("disk", 1 << 20)
            specs.append(TierSpec(disk, self.medium, LeafFirstLRU(), whole_blocks_that_fit))
        owners = Owners()
        store = TieredStore(specs, arena, StoreConfig(audit_share=1.0), owner_of=owners.of)
        self.stores.append(store)
        config = SocketConfig(self.path, staging_bytes=4 * BLOCK_BYTES)
        self.servers.append(SocketServer(store, arena, config, self.authenticate, owners))

    def connect(self, token: str | None = None) -> RemoteStore:
        """Return a new client."""
        client = connect(f"unix://{self.path}", token, memory_bytes=8 * BLOCK_BYTES)
        self.clients.append(client)
        return client


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Return a place for servers; in the end all is at rest and in order."""
    site = Site(tmp_path)
    yield site
    for client in site.clients:
        client.close(2.0)
    for server in site.servers:
        server.close()
    for store in site.stores:
        eventually(partial(is_at_rest, store))
        store.close(2.0)
        store.check()


def link_of(client: RemoteStore) -> Link:
    """Return a client's connection, to be misused."""
    transport = client._transport
    assert isinstance(transport, SocketTransport)
    link = transport._server.current
    assert link is not None
    return link


def test_what_a_client_held_is_given_back_when_it_dies(site: Site) -> None:
    site.medium = DictBackend()
    site.serve()
    client = site.connect()
    keys = keys_of(client, 2)
    put(client, keys)
    client.flush(5.0)
    site.store.clear("host")
    hit = client.lookup(keys)
    client.load(hit, 0, client.now_s() + 10.0)
    assert client.reserve(NAMESPACE, keys_of(client, 1, 500)[0], b"", BLOCK_BYTES) is not None
    assert site.store.num_holds > 0
    link = link_of(client)
    link._calls.channel.shut()  # as when its process is killed
    eventually(lambda: site.store.num_holds == 0 and site.servers[-1].num_clients == 0)
    eventually(lambda: site.store.statistics().staging_bytes == 0)


def test_a_client_goes_on_without_its_server_and_finds_the_next_one(site: Site) -> None:
    site.serve()
    client = site.connect()
    keys = keys_of(client, 2)
    put(client, keys)
    hit = client.lookup(keys)
    site.servers[-1].close()
    eventually(lambda: not client.is_connected)
    ticket = client.load(hit, 0, client.now_s() + 5.0)
    assert ticket.done()
    assert client.lookup(keys).tiers == (None, None)
    assert put(client, keys) == 0
    assert client.health().state is State.UNHEALTHY
    assert "runs without its store" in client.health().reason
    hit.release()
    site.serve()
    eventually(lambda: client.lookup(keys).tiers == (None, None) and client.is_connected)
    assert put(client, keys) == 2
    assert client.flush(5.0)
    assert got(client, keys[1]) == bytes(payload(1))


def test_an_address_where_nothing_answers_is_told_in_the_log(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    connect(f"unix://{site.path}").close()
    connect("http://someone:secret@127.0.0.1:1").close()
    assert [record.getMessage() for record in caplog.records] == [
        f"prefixd: no store answers at {place}: everything misses until one does"
        for place in (f"unix://{site.path}", "http://127.0.0.1:1")
    ]
    caplog.clear()
    site.serve()
    connect(f"unix://{site.path}").close()
    assert caplog.records == []


def test_without_any_server_everything_misses(site: Site) -> None:
    client = site.connect()
    keys = keys_of(client, 1)
    assert not client.is_connected
    assert client.lookup(keys).tiers == (None,)
    assert got(client, keys[0]) is None
    assert client.statistics().tiers == ()
    client.close()
    with pytest.raises(StoreClosedError):
        client.get_into(keys[0], memoryview(bytearray(1)))


def test_a_block_that_is_copied_after_its_lease_is_the_right_one_or_none(site: Site) -> None:
    site.host_blocks = 2
    site.serve()
    client = site.connect()
    first = keys_of(client, 1)
    put(client, first, 1)
    hit = client.lookup(first)
    link = link_of(client)
    out = memoryview(bytearray(BLOCK_BYTES))
    assert link.copy(hit.found.places[0], out)
    hit.release()
    for number in range(2, 8):  # the slot is another block's by now
        assert put(client, keys_of(client, 1, 1000 * number), number) == 1
        assert client.flush(5.0)
    assert not link.copy(hit.found.places[0], out)


def test_a_copy_that_another_block_overtakes_is_noticed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.host_blocks = 1
    site.serve()
    client, other = site.connect(), site.connect()
    keys = keys_of(client, 1)
    put(client, keys, 1)
    hit = client.lookup(keys)
    hit.release()
    from kvstore.remote import link as linking  # noqa: PLC0415  to be changed under the client's hands

    def copy_slowly(source: memoryview, target: memoryview) -> int:
        target[:] = source
        eventually(lambda: put(other, keys_of(other, 1, 900), 2) == 1)
        assert other.flush(5.0)
        return hit.found.places[0].checksum  # even if the bytes were right

    monkeypatch.setattr(linking, "copy_and_checksum", copy_slowly)
    link = link_of(client)
    assert not link.copy(hit.found.places[0], memoryview(bytearray(BLOCK_BYTES)))


def test_what_is_written_to_the_staging_memory_too_late_spoils_nothing(site: Site) -> None:
    site.serve()
    client = site.connect()
    (key,) = keys_of(client, 1)
    reservation = client.reserve(NAMESPACE, key, b"", BLOCK_BYTES)
    assert reservation is not None
    kept = reservation.view
    stop = threading.Event()

    def scribble() -> None:
        while not stop.is_set():
            kept[:] = payload(9)
            kept[:] = payload(8)

    scribbling = threading.Thread(target=scribble)
    scribbling.start()
    reservation.commit()
    assert client.flush(5.0)
    first = got(client, key)
    seconds = {got(client, key) for _ in range(50)}
    stop.set()
    scribbling.join()
    assert first is not None
    assert seconds == {first}, "the server's copy is the block, whatever the client writes afterwards"


def test_tenants_do_not_see_each_other(site: Site) -> None:
    site.authenticate = by_token
    site.serve()
    one, other = site.connect("token-a"), site.connect("token-b")
    assert one.own_namespace(NAMESPACE) != other.own_namespace(NAMESPACE)
    mine = keys_of(one, 2)
    put(one, mine)
    assert one.lookup(mine).tiers == ("host", "host")
    assert keys_of(other, 2) != mine
    stolen = other.lookup(mine)
    assert stolen.tiers == (None, None)
    assert other.peek(mine) == (None, None)
    assert got(other, mine[0]) is None
    assert other.evict(mine) == 0
    place = one.lookup(mine).found.places[0]
    link = link_of(other)
    assert not link.copy(place, memoryview(bytearray(BLOCK_BYTES))), "their memory cannot be mapped"
    assert got(one, mine[0]) == bytes(payload(0))


def test_a_tenant_stores_under_no_key_of_anothers(site: Site) -> None:
    site.authenticate = by_token
    site.serve()
    thief, other, operator = site.connect("token-a"), site.connect("token-b"), site.connect("token-admin")
    for victim in (other, operator):
        theirs = keys_of(victim, 2)  # who knows the prompt and the tenant's name can work them out
        thief.quarantine(theirs[1])
        assert put(thief, theirs) == 1, "these are keys of its own"
        assert thief.flush(5.0)
        assert victim.lookup(theirs).tiers == (None, None), "so nobody else reads what it wrote"
        assert victim.why_absent(theirs[1]).cause is Cause.NEVER_STORED
        assert put(victim, theirs) == 2, "or is kept from storing"
        assert victim.flush(5.0)
        assert got(victim, theirs[0]) == bytes(payload(0))
        assert victim.evict(theirs) == 2
        assert thief.why_absent(theirs[1]).cause is Cause.QUARANTINED, "nor is told what became of it"


def test_a_tenants_pool_is_told_of_its_own_blocks(site: Site) -> None:
    site.authenticate = by_token
    site.serve()
    one, twin, other = map(site.connect, ("token-a", "token-a", "token-b"))
    mine = keys_of(one, 2)
    for client in (one, other):
        for key, parent in zip(mine, [b"", *mine], strict=False):
            client.device_added(key, parent, NAMESPACE)
    twin.quarantine(mine[1])
    eventually(lambda: one.ended(mine) == [mine[1]])
    assert other.ended(mine) == []


def test_what_an_operator_has_imported_can_be_read_by_its_tenant(site: Site) -> None:
    site.authenticate, site.medium = by_token, DictBackend()
    site.serve()
    before, file = site.connect("token-a"), BytesIO()
    put(before, keys_of(before, 2))
    assert before.flush(5.0)
    assert site.store.admin.export(BlockFilter(), file).num_blocks == 2
    before.close()
    site.servers[-1].close()
    site.medium = DictBackend()
    site.serve()
    assert site.store.admin.import_(file).num_stored == 2
    assert site.store.flush(5.0)
    tenant = site.connect("token-a")
    keys = keys_of(tenant, 2)
    for _ in range(2):
        assert None not in tenant.lookup(keys).tiers
        assert got(tenant, keys[1]) == bytes(payload(1))


def test_a_tenant_is_not_told_what_all_together_do(site: Site) -> None:
    site.authenticate = by_token
    site.serve()
    one, other, operator = map(site.connect, ("token-a", "token-b", "token-admin"))
    before = other.statistics()
    put(one, keys_of(one, 2))
    assert one.flush(5.0)
    assert one.lookup(keys_of(one, 2)).tiers == ("host", "host")
    assert other.statistics() == before
    assert [tier.name for tier in before.tiers] == ["device", "host"]
    assert operator.statistics().tiers[1].num_blocks == 2


def test_a_reader_leaves_no_manifest(site: Site) -> None:
    site.authenticate = by_token
    site.serve()
    reader, writer, operator = map(site.connect, ("token-reader", "token-a", "token-admin"))
    reader.register_namespace(replace(NAMESPACE, label="read"))
    assert operator.known_namespaces() == []
    writer.register_namespace(NAMESPACE)
    assert [space.label for space in operator.known_namespaces()] == [NAMESPACE.label]


def test_a_reader_stores_and_removes_nothing(site: Site) -> None:
    site.authenticate = by_token
    site.serve()
    writer, reader = site.connect("token-a"), site.connect("token-reader")
    keys = keys_of(writer, 1)
    assert keys_of(reader, 1) == keys
    put(writer, keys)
    assert writer.flush(5.0)
    assert got(reader, keys[0]) == bytes(payload(0))
    assert put(reader, keys_of(reader, 1, 700)) == 0
    with pytest.raises(AccessError, match="role data"):
        reader.evict(keys)
    with pytest.raises(AccessError, match="role admin"):
        writer.clear()
    assert got(reader, keys[0]) == bytes(payload(0))


def test_who_has_no_token_is_sent_away(site: Site) -> None:
    site.authenticate = by_token
    site.serve()
    with pytest.raises(AccessError, match="not known"):
        site.connect()
    with pytest.raises(AccessError):
        site.connect("token-c")


def test_another_release_is_sent_away_with_the_reason(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.serve()
    from kvstore.remote import wire  # noqa: PLC0415  to be changed for the client

    monkeypatch.setattr(wire, "PROTOCOL_VERSION", 99)
    with pytest.raises(ConfigError, match="version 99"):
        site.connect()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096, os.urandom(64)])
def test_whatever_is_said_to_the_socket_the_server_goes_on(site: Site, said: bytes) -> None:
    site.serve()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(str(site.path))
        stranger.sendall(said)
    client = site.connect()
    keys = keys_of(client, 1)
    assert put(client, keys) == 1
    assert got(client, keys[0]) == bytes(payload(0))


def test_odd_messages_end_a_connection_at_most(site: Site) -> None:
    site.serve()
    sound = site.connect()
    put(sound, keys_of(sound, 1))
    for kind in range(24):
        for body in (b"", b"\xff" * 7, b"\xff" * 64, b"{}"):
            odd = site.connect()
            link_of(odd)._calls.channel.send(kind, body)
            odd.close(0.0)
    assert got(sound, keys_of(sound, 1)[0]) == bytes(payload(0))
    eventually(lambda: site.servers[-1].num_clients == 1)


def test_a_socket_that_a_dead_server_left_is_replaced(site: Site) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(site.path))
    site.serve()
    assert site.connect().is_connected
    assert site.path.stat().st_mode & 0o777 == 0o600
    site.servers[-1].close()
    assert not site.path.exists()


def test_the_socket_of_a_living_server_is_left_alone(site: Site) -> None:
    site.serve()
    with pytest.raises(ConfigError, match="another server"):
        site.serve()
    assert site.connect().is_connected
    site.stores.pop().close()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda site: site.path.write_text("notes"), "no socket"),
        (lambda site: setattr(site, "folder", site.folder / ("x" * 120)), "longer"),
    ],
)
def test_a_socket_that_cannot_be_opened_is_told(
    site: Site, spoil: Callable[[Site], None], reason: str
) -> None:
    spoil(site)
    with pytest.raises(ConfigError, match=reason):
        site.serve()


def test_many_threads_share_one_client(site: Site) -> None:
    site.host_blocks = 64
    site.serve()
    client = site.connect()

    def work(number: int) -> None:
        keys = keys_of(client, 2, 1000 * number)
        for _ in range(20):
            put(client, keys, 2 * number)
            assert got(client, keys[1]) in {None, bytes(payload(2 * number + 1))}
            client.lookup(keys).release()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.flush(5.0)
    client.check()


def test_a_server_that_is_new_is_told_what_its_clients_pools_have(site: Site) -> None:
    site.serve()
    client = site.connect()
    keys = keys_of(client, 3)
    for key, parent in zip(keys, [b"", *keys], strict=False):
        client.device_added(key, parent, NAMESPACE)
    eventually(lambda: site.store.statistics().tiers[0].num_blocks == 3)
    client.device_removed(keys[2])
    site.servers[-1].close()
    site.serve()
    eventually(lambda: site.store.statistics().tiers[0].num_blocks == 2)
    other = site.connect()
    other.device_added(keys[0], b"", NAMESPACE)
    eventually(lambda: site.store.pools._num_pools[keys[0]] == 2)
    client.close()
    eventually(lambda: site.store.statistics().tiers[0].num_blocks == 1)


def test_one_tenant_leaves_places_to_the_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.remote.server._MOST_OF_A_TENANT", 2)
    site.authenticate = by_token
    site.serve()
    for _ in range(2):
        site.connect("token-a")
    with pytest.raises(ConfigError, match="connected already"):
        site.connect("token-a")
    assert site.connect("token-b").is_connected


def test_owners_forget_namespaces_that_nobody_has_described_for_long() -> None:
    owners, tenant = Owners(most=2), Tenant("a")
    spaces = [NAMESPACE.with_salt(str(number), "a") for number in range(3)]
    for space in (*spaces[:2], spaces[0], spaces[2]):
        owners.note(tenant, space)
    assert [owners.of(space.digest) for space in spaces] == [b"a", b"", b"a"]
