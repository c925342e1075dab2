"""The plain way of moving values to and from a Redis server: one socket, one reused buffer."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from kvstore.errors import ServerFailedError

_END = b"\r\n"
_LIFE_S = b"3600"  # should the benchmark be killed, what it stored leaves by itself


class BareSocket:
    """Asks for one value after the other; knows how long each is, and so parses nothing."""

    def __init__(self, sock: socket.socket, buffer_bytes: int) -> None:
        """``sock`` is logged in, and taken over; replies land in ``buffer_bytes``."""
        sock.settimeout(None)
        self._sock = sock
        self._buffer = memoryview(bytearray(buffer_bytes))

    def set_all(self, values: Mapping[bytes, memoryview]) -> None:
        """Write every value under its name."""
        for name, value in values.items():
            head = b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(name), name, len(value))
            self._sock.sendall(head)
            self._sock.sendall(value)
            self._sock.sendall(b"\r\n$2\r\nEX\r\n$%d\r\n%b\r\n" % (len(_LIFE_S), _LIFE_S))
            self._receive(len(b"+OK\r\n"))

    def get_all(self, values: Mapping[bytes, memoryview]) -> None:
        """Read every value into the buffer, one over the other."""
        for name, value in values.items():
            self._sock.sendall(_get(name))
            self._receive(_reply_bytes(len(value)))

    def get_in_one_pipeline(self, names: Sequence[bytes], value_bytes: int) -> None:
        """Read short values of one length."""
        self._sock.sendall(b"".join([_get(name) for name in names]))
        self._receive(len(names) * _reply_bytes(value_bytes))

    def remove(self, names: Sequence[bytes]) -> None:
        """Delete values."""
        for name in names:
            self._sock.sendall(b"*2\r\n$6\r\nUNLINK\r\n$%d\r\n%b\r\n" % (len(name), name))
            self._receive(len(b":1\r\n"))

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def _receive(self, num_bytes: int) -> None:
        received = 0
        while received < num_bytes:
            count = self._sock.recv_into(self._buffer[received:], num_bytes - received)
            if not count:
                raise ServerFailedError("the server has closed the connection")
            received += count
            if bytes(self._buffer[:2]) == b"$-":
                raise ServerFailedError("the server has lost what was just stored: give it more memory")


def _get(name: bytes) -> bytes:
    return b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(name), name)


def _reply_bytes(value_bytes: int) -> int:
    return len(b"$%d\r\n" % value_bytes) + value_bytes + len(_END)
