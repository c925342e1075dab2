"""What strangers send before a request is known: bounded in bytes, in time and in number."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI, Request

from api import heads
from tests.api.live import live

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
Caller = Callable[[], socket.socket]


@pytest.fixture
def caller() -> Iterator[Caller]:
    """Return what connects to a server that tells how long a body was."""
    app = FastAPI()

    @app.api_route("/", methods=["GET", "POST"])
    async def length(request: Request) -> int:
        return len(await request.body())

    with live(app) as url:
        where = urlsplit(url)
        yield lambda: socket.create_connection((where.hostname or "", where.port or 0), 10)


def heard(connection: socket.socket) -> bytes:
    """Return all that comes until the other side ends the connection."""
    told = b""
    while piece := connection.recv(1 << 16):
        told += piece
    return told


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET / HTTP/1.1\r\nA: ", b"a" * 1000),
        (b"GET / HTTP/1.1\r\n", b"A: a\r\n" * 200),
        (b"GET /", b"a" * 1000),
        (POST + b"0\r\n", b"A: a\r\n" * 200),
        (POST + b"1;", b"a" * 1000),
    ],
    ids=["header", "headers", "address", "trailers", "extension"],
)
def test_who_sends_what_never_comes_to_anything_is_cut_off(caller: Caller, begin: bytes, more: bytes) -> None:
    def send_on() -> None:
        for _ in range(100_000):
            connection.sendall(more)

    with caller() as connection:
        connection.sendall(begin)
        with pytest.raises(ConnectionError):
            send_on()


def test_a_long_body_in_small_pieces_is_no_head(caller: Caller) -> None:
    with caller() as connection:
        connection.sendall(POST + b"1\r\na\r\n" * 300_000 + b"0\r\nConnection: close\r\n\r\n")
        connection.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert b"300000" in heard(connection)


def test_a_few_requests_may_be_sent_ahead_and_no_flood(caller: Caller) -> None:
    with caller() as connection:
        connection.sendall(GET * 8 + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert heard(connection).count(b"200 OK") == 9
    with caller() as connection:
        connection.sendall(GET * 2000)
        assert heard(connection).count(b"200 OK") < 20


@pytest.mark.parametrize("sent", [b"", b"GET / HT"], ids=["nothing", "half of one"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_head_is_not_waited_for_for_ever(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, sent: bytes, *, is_first: bool
) -> None:
    monkeypatch.setattr(heads, "_HEAD_S", 0.2)
    with caller() as connection:
        if not is_first:
            connection.sendall(GET)
            assert b"200 OK" in connection.recv(1 << 16)
            sent = sent or b"\r\n"
        connection.sendall(sent)
        assert b"HTTP" not in heard(connection)
