"""Messages over a unix socket: a length, a kind, a body, and at times a descriptor.

Little-endian: 4 bytes length of the body, 1 byte kind, 1 byte number of descriptors (0 or 1), 2 bytes of
zeros, the body.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from contextlib import suppress
from typing import NamedTuple

from kvstore.errors import ChannelError

MOST_BODY_BYTES = 16 << 20
_MOST_PENDING_DESCRIPTORS = 4
_HEAD = struct.Struct("<IBB2x")
_DESCRIPTOR_BYTES = array.array("i").itemsize
_RECEIVED_BYTES = 1 << 16


class Message(NamedTuple):
    """One message. ``descriptor`` (-1: none) is the receiver's to close."""

    kind: int
    body: memoryview
    descriptor: int = -1


class Channel:
    """One end of a connection. Sending and receiving may be done by two threads, each by one at a time.

    Unless it ``takes_descriptors``, the kernel closes those that come.
    """

    def __init__(self, connected: socket.socket, *, takes_descriptors: bool = True) -> None:
        self._socket = connected
        self._ancillary_bytes = socket.CMSG_SPACE(4 * _DESCRIPTOR_BYTES) if takes_descriptors else 0
        self._received = bytearray()
        self._descriptors: list[int] = []

    def send(self, kind: int, *parts: bytes | memoryview, descriptor: int = -1) -> None:
        """Send a message; may block. Raises ``ChannelError`` when the connection has ended."""
        num_bytes = sum(map(len, parts))
        message = b"".join((_HEAD.pack(num_bytes, kind, descriptor >= 0), *parts))
        try:
            if descriptor >= 0:
                sent = socket.send_fds(self._socket, [message], [descriptor])
                message = message[sent:]
            if message:  # whoever has it all may be gone by now
                self._socket.sendall(message)
        except OSError as error:
            raise ChannelError(f"sending failed: {error}") from error

    def receive(self) -> Message:
        """Return the next message; blocks. Raises ``ChannelError`` when the connection ends or is odd."""
        num_bytes, kind, num_descriptors = _HEAD.unpack(self._exactly(_HEAD.size))
        if num_bytes > MOST_BODY_BYTES:
            raise ChannelError(f"a message of {num_bytes} bytes is longer than {MOST_BODY_BYTES}")
        body = self._exactly(num_bytes)
        if num_descriptors > len(self._descriptors):
            raise ChannelError("a message came without its descriptor")
        return Message(kind, memoryview(body), self._descriptors.pop(0) if num_descriptors else -1)

    def set_timeout(self, timeout_s: float | None) -> None:
        """Let what blocks longer than this raise ``ChannelError``; ``None``: it may block for ever."""
        self._socket.settimeout(timeout_s)

    def shut(self) -> None:
        """End the connection, so that whoever blocks on it hears of it; idempotent."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the socket and of descriptors that nobody took; idempotent."""
        self._socket.close()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _exactly(self, num_bytes: int) -> bytes:
        while len(self._received) < num_bytes:
            self._receive_more(num_bytes - len(self._received))
        taken = bytes(self._received[:num_bytes])
        del self._received[:num_bytes]
        return taken

    def _receive_more(self, num_bytes: int) -> None:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(
                max(num_bytes, _RECEIVED_BYTES), self._ancillary_bytes
            )
        except OSError as error:
            raise ChannelError(f"receiving failed: {error}") from error
        for level, kind, carried in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                whole = len(carried) - len(carried) % _DESCRIPTOR_BYTES
                self._descriptors += array.array("i", carried[:whole])
        if len(self._descriptors) > _MOST_PENDING_DESCRIPTORS:
            raise ChannelError("descriptors came that belong to no message")
        if not data:
            raise ChannelError("the other side has ended the connection")
        self._received += data
