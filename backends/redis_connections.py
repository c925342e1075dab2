"""Connections to one server: made and logged in by redis-py, lent out one at a time."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Any

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import RedisError
from redis.retry import Retry

from backends.redis_address import RedisAddress
from backends.redis_errors import NAME, ProtocolError, RefusedError, ours
from backends.redis_wire import Wire
from kvstore.errors import BackendError

_MAX_IDLE = 16
FAULTS = (OSError, RedisError, RefusedError, ProtocolError)
"""What a server, its connection or the driver may raise; everything else is a fault of the code."""


class Connections:
    """Lends connections, and makes one when none is idle. Thread-safe."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._idle: list[Wire] = []
        self._lent: set[Wire] = set()
        self._changed = Condition()
        self._closed = False

    @contextmanager
    def lend(self, operation: str) -> Iterator[Wire]:
        """Lend a connection for one exchange; what it raises becomes a ``BackendError``.

        One that is left in any way but the regular one is closed, since what it will say next is
        not known.
        """
        try:
            wire = self._take(operation)
        except FAULTS as error:
            raise ours(operation, error) from None
        is_sound = False
        try:
            yield wire
            is_sound = True
        except FAULTS as error:
            raise ours(operation, error) from None
        finally:
            self._give_back(wire, is_sound)

    def close(self) -> None:
        """Close idle connections now and those lent when they come back, by force after ``timeout_s``."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            ends_at_s = time.monotonic() + self._address.timeout_s
            self._changed.wait_for(lambda: not self._lent, ends_at_s - time.monotonic())
            lent = list(self._lent)
        for wire in idle:
            wire.close()
        for wire in lent:
            wire.shut()

    def _take(self, operation: str) -> Wire:
        while True:
            with self._changed:
                if self._closed:
                    raise BackendError(NAME, operation, "the backend is closed")
                wire = self._idle.pop() if self._idle else None
            if wire is None:
                wire = Wire(logged_in_socket(self._address), self._address.timeout_s)
            elif not wire.is_fresh():
                wire.close()
                continue
            with self._changed:
                self._lent.add(wire)
            return wire

    def _give_back(self, wire: Wire, is_sound: bool) -> None:
        with self._changed:
            self._lent.discard(wire)
            keep = is_sound and not self._closed and len(self._idle) < _MAX_IDLE
            if keep:
                self._idle.append(wire)
            self._changed.notify_all()
        if not keep:
            wire.close()


def logged_in_socket(address: RedisAddress) -> socket.socket:
    """Connect and log in; the socket is the caller's. Raises what the driver raises."""
    connection = _driver_connection(address)
    connection.connect()
    sock: socket.socket = connection._sock
    connection._sock = None  # so that the driver does not close it
    return sock


def _driver_connection(address: RedisAddress) -> Any:
    """Return redis-py's connection to ``address``: one attempt, RESP 2, nothing sent that is not needed."""
    kind: Any = UnixDomainSocketConnection if address.path else SSLConnection if address.tls else Connection
    place: dict[str, Any] = {"path": address.path}
    if not address.path:
        place = {"host": address.host, "port": address.port}
    if address.tls:
        files = {"ca_certs": address.ca_file, "certfile": address.cert_file, "keyfile": address.key_file}
        place |= {f"ssl_{name}": str(file) for name, file in files.items() if file}
    return kind(
        **place,
        db=address.db,
        username=address.username,
        password=address.password,
        socket_timeout=address.timeout_s,
        socket_connect_timeout=address.timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        driver_info=None,
    )
