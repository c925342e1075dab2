"""Requests to a store's server over HTTP, on connections that are kept and used again."""

from __future__ import annotations

import json
import secrets
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse, HTTPSConnection
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import SplitResult

from kvstore.errors import AccessError, ChannelError, ConfigError

_CONNECT_S = 5.0
_ANSWER_S = 10.0
_MOST_JSON_BYTES = 64 << 20
_NOT_NOW = frozenset({404, 429})


class HttpCalls:
    """Sends requests; each has a connection to itself. Thread-safe.

    Raises ``ChannelError`` when there is no answer, ``AccessError`` for a token that is wrong or not enough,
    ``ConfigError`` for what the server refuses otherwise.
    """

    def __init__(self, address: SplitResult, token: str | None) -> None:
        self._address = address
        self._headers = {"X-Prefixd-Client": secrets.token_hex(16)}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._tls = ssl.create_default_context() if address.scheme == "https" else None
        self._idle: SimpleQueue[HTTPConnection] = SimpleQueue()
        self._in_use: set[HTTPConnection] = set()
        self._is_closed = False

    def ask(self, method: str, path: str, said: object = None, timeout_s: float = 0.0) -> Any:
        """Return the JSON that a request is answered with; ``None``: an empty answer, 404, or not now."""
        body = None if said is None else json.dumps(said, separators=(",", ":")).encode()
        headers = {"Content-Type": "application/json"} if body else {}
        with self._answered(method, path, body, headers, timeout_s) as response:
            told = response.read(_MOST_JSON_BYTES)
        _refuse_refusals(response.status, told)
        try:
            return json.loads(told) if told and response.status not in _NOT_NOW else None
        except (ValueError, RecursionError) as error:
            raise ChannelError("an answer is not JSON") from error

    def send(self, path: str, data: memoryview, timeout_s: float = 0.0) -> bool:
        """Send bytes; ``False``: nobody wants them any more, or now."""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(len(data))}
        with self._answered("PUT", path, data, headers, timeout_s) as response:
            told = response.read(_MOST_JSON_BYTES)
        if response.status in _NOT_NOW:
            return False
        _refuse_refusals(response.status, told)
        return True

    def receive(self, path: str, out: memoryview, timeout_s: float) -> HTTPMessage | None:
        """Fill ``out`` with an answer's body, of just its length; returns its headers.

        ``None``: there is no such body.
        """
        with self._answered("GET", path, None, {}, timeout_s) as response:
            if response.status != 200 or response.getheader("Content-Length") != str(len(out)):
                told = response.read()
                _refuse_refusals(response.status, told)
                return None
            filled = 0
            while filled < len(out):
                num = response.readinto(out[filled:])
                if not num:
                    raise ChannelError("the answer was cut short")
                filled += num
            response.read()
        return response.headers

    def close(self) -> None:
        """End all connections; whoever waits for an answer gets none."""
        self._is_closed = True
        for connection in list(self._in_use):
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
        with suppress(Empty):
            while True:
                self._idle.get_nowait().close()

    @contextmanager
    def _answered(
        self,
        method: str,
        path: str,
        body: bytes | memoryview | None,
        headers: dict[str, str],
        timeout_s: float,
    ) -> Iterator[HTTPResponse]:
        """Send a request and yield its answer, to be read to its end."""
        connection = self._connection(timeout_s + _ANSWER_S)
        self._in_use.add(connection)
        try:
            response = self._request(connection, method, path, body, {**self._headers, **headers})
            yield response
        except (OSError, HTTPException) as error:
            connection.close()
            raise ChannelError(f"no answer from {self._address.netloc}: {error}") from error
        except BaseException:
            connection.close()
            raise
        finally:
            self._in_use.discard(connection)
        if response.will_close or self._is_closed:
            connection.close()
        else:
            self._idle.put(connection)

    def _request(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        body: bytes | memoryview | None,
        headers: dict[str, str],
    ) -> HTTPResponse:
        is_kept = connection.sock is not None
        try:
            connection.request(method, path, body, headers)
            return connection.getresponse()
        except (OSError, HTTPException):
            if not is_kept or self._is_closed:
                raise
        connection.close()  # a kept connection may have been ended by the server meanwhile
        connection.request(method, path, body, headers)
        return connection.getresponse()

    def _connection(self, timeout_s: float) -> HTTPConnection:
        try:
            connection = self._idle.get_nowait()
        except Empty:
            connection = self._new_connection()
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        return connection

    def _new_connection(self) -> HTTPConnection:
        host, port = self._address.hostname or "", self._address.port
        if self._tls is not None:
            return HTTPSConnection(host, port, timeout=_CONNECT_S, context=self._tls)
        return HTTPConnection(host, port, timeout=_CONNECT_S)


def _refuse_refusals(status: int, body: bytes) -> None:
    if status < 400 or status in _NOT_NOW:
        return
    try:
        reason = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        reason = f"status {status}"
    if status == 401:
        raise AccessError("the token is missing or wrong: ask the server's operator for one")
    if status == 403:
        raise AccessError(reason)
    if status in {400, 405, 413}:
        raise ConfigError("store", reason)
    raise ChannelError(reason)
