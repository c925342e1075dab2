"""Finds a store in another process."""

from __future__ import annotations

import logging
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from kvstore.clock import Clock
from kvstore.errors import ConfigError
from kvstore.remote.client import RemoteStore
from kvstore.remote.http_transport import HttpAddress, HttpTransport
from kvstore.remote.socket_transport import SocketAddress, SocketTransport
from kvstore.remote.transport import Transport

_log = logging.getLogger(__name__)


def connect(address: str, token: str | None = None, memory_bytes: int = 256 << 20) -> RemoteStore:
    """Return the store that answers at an address, with the interface of one in this process.

    That is ``unix:///path/to/socket`` on this machine, where bytes go through shared memory, or
    ``http://host:port`` or ``https://host:port`` elsewhere. ``memory_bytes`` bounds what blocks take here on
    their way. A server that does not answer is no error, but a warning in the log: everything misses until it
    does. Raises ``ConfigError`` for what is no address or a server of another release, ``AccessError`` for a
    token that is missing or wrong.
    """
    clock, parts = Clock(), _parsed(address)
    store = RemoteStore(_transport(parts, token, memory_bytes, clock), clock)
    if not store.is_connected:
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        _log.warning("prefixd: no store answers at %s: everything misses until one does", place)
    return store


def _transport(parts: SplitResult, token: str | None, memory_bytes: int, clock: Clock) -> Transport:
    if parts.scheme == "unix":
        return SocketTransport(SocketAddress(Path(parts.path), token, memory_bytes), clock)
    return HttpTransport(HttpAddress(parts, token, memory_bytes), clock)


def _parsed(address: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        is_elsewhere = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_elsewhere = False
        parts = urlsplit("")
    is_here = parts.scheme == "unix" and not parts.netloc and len(parts.path) > 1
    if is_elsewhere or is_here:
        return parts
    raise ConfigError("store", f"{address!r} is no address: give unix:///path/to/socket or http://host:port")
