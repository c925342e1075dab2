"""Finds a store in another process."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from kvstore.errors import ConfigError
from kvstore.remote.client import RemoteStore
from kvstore.remote.connection import ClientConfig


def connect(address: str, token: str | None = None, memory_bytes: int = 256 << 20) -> RemoteStore:
    """Return the store that answers at ``unix:///path/to/socket``, with the interface of one in this process.

    ``memory_bytes`` bounds what loaded blocks take here at once. A server that does not answer is not an
    error: everything misses until it does. Raises ``ConfigError`` for what is no address or a server of
    another release, ``AccessError`` for a token that is missing or wrong.
    """
    parts = urlsplit(address)
    if parts.scheme != "unix" or parts.netloc or len(parts.path) < len("/s"):
        raise ConfigError("store", f"{address!r} is no address: give unix:///path/to/socket")
    return RemoteStore(ClientConfig(Path(parts.path), token, memory_bytes))
