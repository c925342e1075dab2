"""Taking the port, before anything slow happens."""

from __future__ import annotations

import socket
from errno import EADDRINUSE

from kvstore.errors import ConfigError


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address, not yet listening. Raises ``ConfigError`` saying why not."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        reason = f"{host}: {error.strerror}; name an address of this machine"
        raise ConfigError("host", reason) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise address_error(host, port, error) from None
    return listener


def address_error(host: str, port: int, error: OSError) -> ConfigError:
    """Return what to tell when ``error`` kept a server from an address."""
    if error.errno == EADDRINUSE:
        return ConfigError(
            "port", f"{port} is in use on {host}; stop who uses it, or choose another with --port"
        )
    return ConfigError("host", f"cannot listen on {host} port {port}: {error.strerror}")
