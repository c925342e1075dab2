"""Clients over HTTP that are slow, or want too much, hold nobody else up."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from kvstore.conformance.prompts import BLOCK_BYTES, NAMESPACE, Prompt
from kvstore.errors import OverloadedError
from kvstore.remote.client import RemoteStore
from kvstore.remote.http_transport import HttpAddress, HttpTransport
from kvstore.remote.tenancy import Tenant
from tests.api.store_server import StoreServer
from tests.eventually import eventually
from tests.kvstore.faults import waiting
from tests.kvstore.served_store import ServedStore

SLOW = {"X-Prefixd-Client": "slow"}


class Town:
    """A served store, and clients of it."""

    def __init__(self) -> None:
        self.served = ServedStore()
        self.server = StoreServer(self.served.store)

    def connect(self) -> RemoteStore:
        """Return a client."""
        return self.served.client(HttpTransport(HttpAddress(urlsplit(self.server.url)), self.served.clock))

    def post(self, path: str, body: dict[str, object], timeout_s: float = 10.0) -> httpx.Response:
        """Ask as the slow client."""
        return httpx.post(f"{self.server.url}/store/{path}", headers=SLOW, json=body, timeout=timeout_s)

    def sent(self, request: str) -> socket.socket:
        """Return a connection over which the slow client has begun a request; it reads nothing of it."""
        bare = socket.create_connection(("127.0.0.1", self.server.port))
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        bare.sendall(f"{request} HTTP/1.1\r\nHost: x\r\nX-Prefixd-Client: slow\r\n".encode())
        return bare


@pytest.fixture
def town() -> Iterator[Town]:
    """Return a town."""
    town = Town()
    yield town
    town.served.close(town.server.close)


def test_flushes_that_wait_for_a_medium_hold_up_no_lookup(town: Town) -> None:
    prompt, may_write = Prompt(town.connect(), 2), threading.Event()
    town.served.medium.fail = waiting("put", may_write)
    assert prompt.put() == 2
    flushing = [
        threading.Thread(target=town.post, args=("flush", {"timeout_s": 20}, 30.0)) for _ in range(20)
    ]
    for thread in flushing:
        thread.start()
    began_s = time.monotonic()
    for _ in range(50):
        assert prompt.tiers() == ["host", "host"]
        assert prompt.has(1)
    assert time.monotonic() - began_s < 10.0
    may_write.set()
    for thread in flushing:
        thread.join(30.0)


def test_who_does_not_read_what_it_asked_for_holds_none_of_the_stores_memory(town: Town) -> None:
    prompt = Prompt(town.connect(), 1)
    assert prompt.put() == 1
    assert prompt.store.flush(5.0)
    found = town.post("lookups", {"keys": [key.hex() for key in prompt.keys]}).json()
    with contextlib.ExitStack() as open_:
        for _ in range(8):
            bare = open_.enter_context(town.sent(f"GET /store/lookups/{found['lease']}/blocks/0"))
            bare.sendall(b"\r\n")
        eventually(lambda: town.served.store.statistics().tiers[1].counts["loads"] >= 8)
        httpx.delete(f"{town.server.url}/store/lookups/{found['lease']}", headers=SLOW)
        eventually(lambda: town.served.store.num_holds == 0)
        assert prompt.has(0)


def test_a_body_that_comes_too_slowly_gives_its_memory_back(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.store.data_routes._BODY_S", 0.2)
    client = town.connect()
    town.post("namespaces", {"manifest": NAMESPACE.manifest()})
    offered = {"namespace": NAMESPACE.digest.hex(), "key": "ab" * 16, "nbytes": BLOCK_BYTES}
    number = town.post("reservations", offered).json()["reservation"]
    assert town.served.arena.used_bytes > 0
    with town.sent(f"PUT /store/reservations/{number}") as bare:
        bare.sendall(f"Content-Length: {BLOCK_BYTES}\r\n\r\nsome".encode())
        eventually(lambda: town.served.arena.used_bytes == 0)
        bare.settimeout(5.0)
        assert b" 400 " in bare.recv(4096)
    assert client.lookup([bytes.fromhex("ab" * 16)]).tiers == (None,)


def test_a_body_for_which_no_thread_is_left_gives_its_memory_back(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    town.post("namespaces", {"manifest": NAMESPACE.manifest()})
    offered = {"namespace": NAMESPACE.digest.hex(), "key": "ab" * 16, "nbytes": BLOCK_BYTES}
    number = town.post("reservations", offered).json()["reservation"]
    monkeypatch.setattr(town.server.context.threads, "_most_open", 0)
    url = f"{town.server.url}/store/reservations/{number}"
    assert httpx.put(url, headers=SLOW, content=bytes(BLOCK_BYTES)).status_code == 429
    assert town.served.arena.used_bytes == 0


def test_a_block_for_which_no_thread_is_left_gives_its_memory_back(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, may_read, asked = Prompt(town.connect(), 1), threading.Event(), list[bytes]()
    assert prompt.put() == 1
    assert prompt.store.flush(5.0)
    town.served.store.clear("host")
    lease = town.post("lookups", {"keys": [key.hex() for key in prompt.keys]}).json()["lease"]
    town.served.medium.fail = waiting("get", may_read, asked)
    statuses = list[int]()

    def load() -> None:
        url = f"{town.server.url}/store/lookups/{lease}/blocks/0"
        statuses.append(httpx.get(url, headers=SLOW).status_code)

    loading = threading.Thread(target=load)
    loading.start()
    eventually(lambda: bool(asked))
    with monkeypatch.context() as full:
        full.setattr(town.server.context.threads, "_most_open", 0)
        may_read.set()
        loading.join(10.0)
    assert statuses == [429]
    httpx.delete(f"{town.server.url}/store/lookups/{lease}", headers=SLOW)
    town.served.store.clear("host")
    eventually(lambda: town.served.arena.used_bytes == 0)


def test_one_client_has_so_many_bytes_under_way_and_no_more(town: Town) -> None:
    moving = town.server.context.moving
    one, other = (town.server.context.clients.session(Tenant(), name) for name in ("one", "other"))
    with moving.moves(one, 10), moving.moves(one, (256 << 20) - 10):
        with pytest.raises(OverloadedError), moving.moves(one, 1):
            pass
        with moving.moves(other, 1):
            pass
    with moving.moves(one, 1 << 30):
        with pytest.raises(OverloadedError), moving.moves(one, 1):
            pass
        with moving.moves(other, 1 << 30), pytest.raises(OverloadedError), moving.moves(other, 1):
            pass
    assert not moving._of_each


def test_case_12_over_http_the_server_itself_refuses_a_load_from_a_lease_that_is_over(town: Town) -> None:
    prompt = Prompt(town.connect(), 1)
    assert prompt.put() == 1
    assert prompt.store.flush(5.0)
    for from_disk in (False, True):
        if from_disk:
            town.served.store.clear("host")
        asked = {"keys": [key.hex() for key in prompt.keys], "lease_s": 0.5}
        found = town.post("lookups", asked).json()
        town.served.pass_s(0.6)
        loaded = httpx.get(f"{town.server.url}/store/lookups/{found['lease']}/blocks/0", headers=SLOW)
        assert loaded.status_code == 404
        assert loaded.json()["error"]["message"] == "the lease is over"
