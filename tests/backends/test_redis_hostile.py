"""A server that answers anything but what it should: each call ends soon, as a fault, in little memory."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from threading import Event as Flag

import pytest

from backends import redis_wire
from backends.redis_backend import RedisBackend
from backends.redis_layout import header_name
from kvstore.conformance.frames import get, make_header, make_key, make_payload, put
from kvstore.errors import BackendError
from kvstore.frame import HEADER_BYTES, Expiry
from tests.valkey import Valkey

KEY = make_key("a")
PAYLOAD = make_payload("a", 5000)
HEADER = make_header(KEY, PAYLOAD).pack()
NOT_UNDERSTOOD = "the server's answer is not understood: "
LATE = "the server does not answer in time: see whether it runs, or raise redis_timeout_s"

CALLS: dict[str, Callable[[RedisBackend], object]] = {
    "get": lambda redis: get(redis, KEY, 5000),
    "put": lambda redis: put(redis, KEY, PAYLOAD),
    "lookup": lambda redis: redis.resident([KEY]),
    "amend": lambda redis: redis.amend(KEY, lambda header: replace(header, expiry=Expiry(7))),
    "put_manifest": lambda redis: redis.put_manifest(b"\x01" * 16, "{}"),
    "manifests": lambda redis: list(redis.manifests()),
}


@contextmanager
def server(first: bytes, then: bytes = b"", timeout_s: float = 5.0) -> Iterator[RedisBackend]:
    """Run a server that answers anything with ``first``, and then goes on with ``then`` for ever."""
    is_over = Flag()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while connection.recv(100_000):
                connection.sendall(first)
                while then and not is_over.wait(0.01):
                    connection.sendall(then)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        accepting = threading.Thread(target=accept)
        accepting.start()
        url = f"redis://127.0.0.1:{listening.getsockname()[1]}"
        try:
            with closing(Valkey.backend_at(url, timeout_s=timeout_s)) as redis:
                yield redis
        finally:
            is_over.set()
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join()


def reason_of(redis: RedisBackend, operation: str) -> str:
    with pytest.raises(BackendError) as told:
        CALLS[operation](redis)
    return told.value.reason


@pytest.mark.parametrize(
    ("operation", "reply"),
    [
        ("get", b"*many\r\n"),
        ("get", b"*-5\r\n"),
        ("get", b"*999999999999\r\n"),
        ("get", b"*2\r\n$x\r\n"),
        ("get", b"*2\r\n$3\r\nabcde\r\n"),
        ("put", b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*x\r\n"),
        ("amend", b"+OK\r\n" + b"$192\r\n" + HEADER + b"\r\n" + b"+OK\r\n+QUEUED\r\n+QUEUED\r\n:5\r\n"),
        ("put_manifest", b":1\r\n:1\r\n$1\r\nx\r\n"),
        ("manifests", b":5\r\n"),
        ("manifests", b"*2\r\n:5\r\n*1\r\n:3\r\n"),
        ("manifests", b"*2\r\n$1\r\n0\r\n$1\r\nx\r\n"),
    ],
)
def test_garbage_is_a_fault(operation: str, reply: bytes) -> None:
    with server(reply) as redis:
        assert reason_of(redis, operation).startswith(NOT_UNDERSTOOD)


@pytest.mark.parametrize("reply", [b":5\r\n", b"*1\r\n:5\r\n", b"$3\r\nabc\r\n", b"$-1\r\n"])
def test_what_is_no_header_is_no_block(reply: bytes) -> None:
    with server(reply) as redis:
        assert list(redis.resident([KEY])) == [None]


@pytest.mark.parametrize(
    ("operation", "first", "then"),
    [
        ("get", b"*2", b"2"),
        ("get", b"*2\r\n$1000000000\r\n", b"x"),
        ("get", b"*2\r\n$192\r\n", b"x"),
        ("get", b"*2\r\n$192\r\n" + bytes(192), b""),
        ("lookup", b"$192\r\n", b"x"),
        ("put", b"+", b"O"),
    ],
)
def test_a_trickle_is_too_slow(operation: str, first: bytes, then: bytes) -> None:
    with server(first, then, timeout_s=0.2) as redis:
        assert reason_of(redis, operation) == LATE


def test_no_more_is_gathered_than_could_have_been_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_wire, "_MOST_REPLY_BYTES", 100_000)
    with server(b"$900000000\r\n", bytes(50_000)) as redis:
        assert reason_of(redis, "lookup") == f"{NOT_UNDERSTOOD}more than was asked for"


def test_a_header_that_claims_to_be_endless_costs_no_memory(own_valkey: Valkey) -> None:
    endless = replace(make_header(KEY, PAYLOAD), stored_bytes=2**60, raw_bytes=2**60)
    with closing(own_valkey.backend()) as redis:
        own_valkey.admin().set(header_name(KEY), endless.pack())
        assert list(redis.resident([KEY])) == [endless]
        assert not redis.amend(KEY, lambda header: replace(header, expiry=Expiry(7)))
        redis.delete(KEY)
        assert list(redis.resident([KEY])) == [None]


def test_a_scan_that_never_ends_is_left() -> None:
    with server(b"*2\r\n$1\r\n7\r\n*0\r\n") as redis:
        assert list(redis.manifests()) == []


def test_a_value_that_begins_like_a_header_is_none_and_is_not_kept(
    own_valkey: Valkey,
) -> None:
    with closing(own_valkey.backend()) as redis:
        put(redis, KEY, PAYLOAD)
        own_valkey.admin().append(header_name(KEY), b"x" * 1000)
        assert list(redis.resident([KEY])) == [None]
        assert redis._unpacked.cache_info().currsize == 0
        own_valkey.admin().setrange(header_name(KEY), 0, b"y" * HEADER_BYTES)
        assert get(redis, KEY, 5000) is None


def test_facts_of_a_server_that_tells_none_are_a_problem() -> None:
    with server(b":5\r\n") as redis:
        assert "not understood" in redis.stats().facts["problem"]
