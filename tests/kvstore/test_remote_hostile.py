"""Clients that mean no good: none of them costs the others anything but the time it takes to send it away."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kvstore.conformance.prompts import BLOCK_BYTES, NAMESPACE, Prompt, payload
from kvstore.remote import wire
from kvstore.remote.channel import Channel
from kvstore.remote.client import RemoteStore
from kvstore.remote.client_loads import ClientLoads
from kvstore.remote.link import Link
from kvstore.remote.server import SocketServer
from kvstore.remote.socket_transport import SocketAddress, SocketTransport
from kvstore.remote.wire import NOWHERE, Kind, Place
from kvstore.statistics import State
from tests.eventually import eventually
from tests.kvstore.faults import waiting
from tests.kvstore.served_store import ServedStore


class Town:
    """A served store, and clients that behave and others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.served = ServedStore()
        self.server: SocketServer = self.served.on_socket(path)

    def connect(self) -> RemoteStore:
        """Return a client."""
        return self.served.client(SocketTransport(SocketAddress(self.path), self.served.clock))

    def stranger(self) -> socket.socket:
        """Return a bare connection."""
        bare = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bare.connect(str(self.path))
        return bare

    def newcomer(self) -> Channel:
        """Return a connection of a client that has been let in, to be misused."""
        channel = Channel(self.stranger())
        channel.send(Kind.HELLO, wire.pack_json({"version": wire.PROTOCOL_VERSION}))
        os.close(channel.receive().descriptor)
        return channel


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    """Return a town where a client that behaves is served before and afterwards."""
    town = Town(tmp_path / "s")
    sound = Prompt(town.connect(), 2)
    assert sound.put() == 2
    assert sound.store.flush(5.0)
    yield town
    assert sound.has(0)
    assert sound.has(1)
    eventually(lambda: town.server.num_clients == len(town.served.clients))
    town.served.close(town.server.close)


def link_of(client: RemoteStore) -> Link:
    """Return a client's connection."""
    transport = client._transport
    assert isinstance(transport, SocketTransport)
    link = transport._server.current
    assert link is not None
    return link


def open_descriptors() -> set[str]:
    """Return what the descriptors name that are open here, sockets and shared memory aside."""
    names = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            names.add(str(entry.readlink()))
    return names


def test_descriptors_that_are_sent_unasked_are_closed(town: Town, tmp_path: Path) -> None:
    for number in range(4):
        secret = tmp_path / f"secret-{number}"
        secret.write_text("x")
        with secret.open() as file, town.stranger() as bare:
            hello = wire.pack_json({"version": wire.PROTOCOL_VERSION})
            head = struct.pack("<IBB2x", len(hello), Kind.HELLO, number % 2)
            socket.send_fds(bare, [head + hello], [file.fileno()] * (number + 1))
            bare.settimeout(0.2)
            with suppress(TimeoutError):
                bare.recv(1)
            named = file.name
        eventually(lambda: named not in open_descriptors())  # noqa: B023  waited for within the turn


@pytest.mark.parametrize(
    "said",
    [
        struct.pack("<IBB2x", 0xFFFFFFFF, Kind.HELLO, 0),
        struct.pack("<IBB2x", 16 << 20, Kind.LOOKUP, 0) + b"x" * 100,
        struct.pack("<IBB2x", 2, 255, 255) + b"{}",
        struct.pack("<IBB2x", 2, Kind.JOIN, 0) + b"{}",
        struct.pack("<IBB2x", 100_000, Kind.HELLO, 0) + b"[" * 100_000,
    ],
)
def test_frames_that_are_none_end_their_connection(town: Town, said: bytes) -> None:
    with town.stranger() as bare:
        bare.sendall(said)


@pytest.mark.parametrize(
    "greeting",
    [
        {"version": "1"},
        {"version": wire.PROTOCOL_VERSION, "client": 1, "secret": "é" * 32},
        {"version": wire.PROTOCOL_VERSION, "client": True, "secret": ""},
        {"version": wire.PROTOCOL_VERSION, "client": 1, "secret": "\ud800"},
        {"version": wire.PROTOCOL_VERSION, "client": 1 << 70, "secret": None},
    ],
)
def test_nobody_joins_a_client_without_its_secret(
    town: Town, greeting: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    for kind in (Kind.JOIN, Kind.LISTEN):
        channel = Channel(town.stranger())
        channel.send(kind, wire.pack_json(greeting))
        assert channel.receive().kind == Kind.REFUSED
        channel.close()
    assert not caplog.records, "nothing unforeseen"


def test_numbers_of_others_name_nothing(town: Town) -> None:
    owner, thief = town.connect(), town.connect()
    keys = Prompt(owner, 2).keys
    hit = owner.lookup(keys)
    reserved = owner.reserve(NAMESPACE, Prompt(owner, 1, first=700).keys[0], b"", BLOCK_BYTES)
    assert reserved is not None
    link = link_of(thief)
    for number in range(10):
        link.say(Kind.RELEASE, wire.NUMBER.pack(number))
        link.say(Kind.ABORT, wire.NUMBER.pack(number))
        link.say(Kind.COMMIT, wire.COMMITMENT.pack(number, 0))
        link.say(Kind.LET_GO, wire.NUMBER.pack(number))
        link.say(Kind.LOAD, wire.LOAD_ORDER.pack(number, 0, number, 1.0))
    assert thief.lookup(keys).is_leased
    assert town.served.store.evict(keys) == 0, "the owner's lease still holds"
    reserved.view[:] = payload(7)
    reserved.commit()
    assert owner.flush(5.0)
    hit.release()


@pytest.mark.parametrize("start", [1, BLOCK_BYTES // 2, 1 << 40, (1 << 64) - 1])
def test_what_is_committed_from_where_there_is_no_staging_memory_is_not_stored(
    town: Town, start: int
) -> None:
    client = town.connect()
    link, (key,) = link_of(client), Prompt(client, 1, first=300).keys
    reserved = client.reserve(NAMESPACE, key, b"", BLOCK_BYTES)
    assert reserved is not None
    beyond = link.facts["staging_bytes"] - BLOCK_BYTES + start
    number = reserved._number  # type: ignore[attr-defined]
    link.say(Kind.COMMIT, wire.COMMITMENT.pack(number, min(beyond, (1 << 64) - 1)))
    assert client.lookup([key]).tiers == (None,)
    reserved.abort()


def test_who_floods_and_does_not_listen_is_sent_away(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.remote.session._MOST_JOBS", 200)
    flood = b"".join(
        struct.pack("<IBB2x", wire.LOAD_ORDER.size, Kind.LOAD, 0) + wire.LOAD_ORDER.pack(1, 0, number, 1.0)
        for number in range(1000)
    )
    client = town.newcomer()
    number = town.server._num_clients
    listener = Channel(town.stranger())
    secret = town.server._clients[number].secret
    greeting = {"version": wire.PROTOCOL_VERSION, "client": number, "secret": secret}
    listener.send(Kind.LISTEN, wire.pack_json(greeting))
    client.set_timeout(5.0)

    def send_for_ever() -> None:
        while True:  # it would hear of the end of each, and does not listen
            client._socket.sendall(flood)

    with pytest.raises(OSError, match=r"(?i)pipe|reset"):
        send_for_ever()
    client.close()
    listener.close()


def test_a_client_that_tells_of_a_million_connections_has_a_few(town: Town) -> None:
    client = town.newcomer()
    number = town.server._num_clients
    greeting = {"version": wire.PROTOCOL_VERSION, "client": number}
    greeting["secret"] = town.server._clients[number].secret  # type: ignore[assignment]
    joined = []
    for _ in range(40):
        channel = Channel(town.stranger())
        channel.send(Kind.JOIN, wire.pack_json(greeting))
        joined.append((channel.receive().kind, channel))
    assert [kind for kind, _ in joined].count(Kind.REFUSED) == 40 - 31
    for _, channel in joined:
        channel.close()
    client.close()


def test_a_clients_impatience_does_not_pause_a_medium_for_all(town: Town) -> None:
    client, store, may_read = town.connect(), town.served.store, threading.Event()
    prompt = Prompt(client, 2)
    store.clear("host")
    town.served.medium.fail = waiting("get", may_read)
    hit = client.lookup(prompt.keys)
    link = link_of(client)
    for number in range(10):
        link.say(Kind.LOAD, wire.LOAD_ORDER.pack(hit.found.lease, number % 2, number, 0.001))
    client.peek(prompt.keys)  # answered when those have been taken in
    town.served.pass_s(0.5)
    for number in range(10):
        link.say(Kind.LET_GO, wire.NUMBER.pack(number))
    client.peek(prompt.keys)
    assert store.health().state is State.OK
    may_read.set()
    hit.release()


def test_leases_and_copies_that_a_client_never_gives_back_end(town: Town) -> None:
    client, store = town.connect(), town.served.store
    prompt = Prompt(client, 2)
    client.lookup(prompt.keys, lease_s=float("inf"))
    session = town.server._clients[town.server._num_clients].session
    town.served.store.clear("host")
    hit = client.lookup(prompt.keys)
    session.load(hit.found.lease, 0, 999, 5.0)  # nobody will say that it has been copied
    eventually(lambda: bool(session.loads._loaded))
    town.served.pass_s(61.0)
    session.sweep(store.now_s())
    assert not session.loads._loaded
    town.served.pass_s(3600.0)
    eventually(lambda: store.num_holds == 0)


def test_loads_of_one_client_take_turns_with_those_of_others(town: Town) -> None:
    store, ended = town.served.store, dict[int, Place]()
    prompt = Prompt(town.connect(), 2)
    store.clear("host")
    loads = ClientLoads(store, lambda job: job(), ended.__setitem__, 1)
    hit = store.lookup(prompt.keys)
    for number in range(10):
        loads.begin(hit, number % 2, number, 5.0)
    loads.release(hit)
    assert len(loads._tickets) <= 1
    eventually(lambda: sorted(ended) == list(range(10)))
    assert NOWHERE not in ended.values(), "the lease lasts until all have begun"
    for number in range(10):
        loads.let_go(number)
    assert not hit.is_leased
    loads.end()


def test_a_place_that_the_server_never_told_is_a_miss(town: Town) -> None:
    link = link_of(town.connect())
    out = memoryview(bytearray(BLOCK_BYTES))
    for slab in (1, 2, 999, 0xFFFFFFFF):
        for offset in (0, 4096, 1 << 40):
            assert not link.copy(Place(0, slab, offset, BLOCK_BYTES, 0, 1), out)


def test_case_12_the_server_itself_refuses_a_load_from_a_lease_that_is_over(town: Town) -> None:
    client, store = town.connect(), town.served.store
    prompt = Prompt(client, 2)
    store.clear("host")
    hit = client.lookup(prompt.keys, lease_s=0.5)
    town.served.pass_s(0.6)
    store.lookup([])
    assert store.num_holds == 0
    ended, heard = dict[int, Place](), threading.Event()
    session = town.server._clients[town.server._num_clients].session

    def note(number: int, place: Place) -> None:
        ended[number] = place
        heard.set()

    session.loads._on_ended = note
    session.load(hit.found.lease, 0, 7, 5.0)
    assert heard.wait(5.0)
    assert ended == {7: NOWHERE}


def test_a_mapped_slab_cannot_be_written_to(town: Town) -> None:
    client = town.connect()
    prompt = Prompt(client, 2)
    assert prompt.has(0)
    (slab,) = link_of(client)._slabs.values()
    with pytest.raises(TypeError, match="read-only"):
        slab.slots[:1] = b"x"
    with pytest.raises(TypeError, match="read-only"):
        slab.generations[0] = 7
