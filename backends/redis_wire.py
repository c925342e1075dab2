"""RESP on a bare socket: what is sent is not copied, and values land in the caller's buffers."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from hiredis import Reader

from backends.redis_errors import ProtocolError, RefusedError

Piece = bytes | memoryview

_BUFFER_BYTES = 64 * 1024
_AHEAD_BYTES = 512  # read beyond a value, to find the next one's length: little, since it is copied
_MOST_REPLY_BYTES = 64 << 20  # of short replies together: nothing that is asked for this way is longer
_MAX_PIECES = 512  # well below what one system call takes
_END = b"\r\n"


class Wire:
    """A connection that is logged in; ``sock`` is taken over. Not thread-safe; every call may block.

    Each call that reads ends with a ``TimeoutError`` or ``BlockingIOError`` soon after ``timeout_s``, also
    where a trickle comes. Any error but ``RefusedError`` leaves the connection in an unknown state, fit
    only to be closed.
    """

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        self._sock = sock
        self._timeout_s = timeout_s
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._is_plain = not isinstance(sock, ssl.SSLSocket)
        if self._is_plain:
            # Blocking, with the kernel's own timeouts: it then gathers a whole value in one call.
            limit = struct.pack("ll", int(timeout_s), max(1, int(timeout_s % 1 * 1_000_000)))
            sock.settimeout(None)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        else:
            sock.settimeout(timeout_s)

    def is_fresh(self) -> bool:
        """Whether nothing lies there that was not asked for, such as the end of the connection."""
        if self._start != self._end:
            return False
        waiting = select.poll()
        waiting.register(self._sock, select.POLLIN)
        return not waiting.poll(0) or self._has_only_tickets()

    def send(self, pieces: Sequence[Piece]) -> None:
        """Send ``pieces`` one after the other; they stay the caller's."""
        if self._is_plain:
            left = [memoryview(piece) for piece in pieces]
            while left:
                _drop_sent(left, self._sock.sendmsg(left[:_MAX_PIECES]))
        else:
            for piece in pieces:
                self._sock.sendall(piece)

    def length(self, kind: bytes) -> int:
        """Read how long a value (``$``) or an array (``*``) is; -1: nil. Raises ``RefusedError``."""
        line = self._line()
        if line[:1] != kind:
            raise _odd(line)
        try:
            return int(line[1:])
        except ValueError:
            raise ProtocolError("a length that is no number") from None

    def status(self) -> bytes:
        """Read a reply of one line, and return that. Raises ``RefusedError``."""
        line = self._line()
        if line[:1] == b"-":
            raise _odd(line)
        return line

    def bulk(self, target: memoryview) -> int | None:
        """Read a value into the front of ``target`` and return its length; ``None``: there is none.

        One that is longer than ``target`` is passed over; its length is told all the same.
        """
        num_bytes = self.length(b"$")
        if num_bytes < 0:
            return None
        if num_bytes > len(target):
            self._skip(num_bytes)
        else:
            self._read_into(target[:num_bytes])
        self._need(len(_END))
        self._start += len(_END)
        if self._buffer[self._start - len(_END) : self._start] != _END:
            raise ProtocolError("a value does not end where it should")
        return num_bytes

    def replies(self, count: int) -> list[Any]:
        """Read ``count`` short replies of any kind, all that is under way. Raises ``RefusedError``."""
        reader = Reader(protocolError=ProtocolError, replyError=RefusedError)
        reader.feed(b"*%d\r\n" % count)  # one reply to the parser, which gathers them without us
        num_left, ends_at_s = _MOST_REPLY_BYTES, self._ends_at_s()
        while (found := reader.gets()) is False:
            self._require_time(ends_at_s)
            num_bytes = self._received(self._sock.recv_into(self._view))
            num_left -= num_bytes
            if num_left < 0:
                raise ProtocolError("more than was asked for")
            reader.feed(self._view, 0, num_bytes)  # type: ignore[arg-type]  # any buffer will do
        for reply in found:
            if isinstance(reply, RefusedError):
                raise reply
        return cast("list[Any]", found)

    def shut(self) -> None:
        """Wake whoever waits on this connection, with an error; for another thread to call."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def _has_only_tickets(self) -> bool:
        """Whether what has come is TLS's own, as session tickets are, and nothing from the server."""
        if self._is_plain:
            return False
        self._sock.settimeout(0)
        try:
            self._sock.recv_into(self._view, 1)
        except ssl.SSLWantReadError:
            return True
        except OSError:
            return False
        finally:
            self._sock.settimeout(self._timeout_s)
        return False

    def _line(self) -> bytes:
        ends_at_s = self._ends_at_s()
        while (at := self._buffer.find(_END, self._start, self._end)) < 0:
            self._require_time(ends_at_s)
            self._fill(_AHEAD_BYTES)
        line = bytes(self._view[self._start : at])
        self._start = at + len(_END)
        return line

    def _read_into(self, target: memoryview) -> None:
        num_here = min(len(target), self._end - self._start)
        target[:num_here] = self._view[self._start : self._start + num_here]
        self._start += num_here
        if num_here < len(target):
            self._receive_all(target[num_here:])

    def _skip(self, num_bytes: int) -> None:
        ends_at_s = self._ends_at_s()
        while num_bytes:
            self._require_time(ends_at_s)
            if self._start == self._end:
                self._fill(_BUFFER_BYTES)
            num_here = min(num_bytes, self._end - self._start)
            self._start += num_here
            num_bytes -= num_here

    def _need(self, num_bytes: int) -> None:
        while self._end - self._start < num_bytes:
            self._fill(_AHEAD_BYTES)

    def _fill(self, limit: int) -> None:
        """Read what there is, at most ``limit`` bytes, behind what lies in the buffer."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end + min(limit, _AHEAD_BYTES) > _BUFFER_BYTES:
            held = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, len(held)
            self._view[: len(held)] = held
        room = min(limit, _BUFFER_BYTES - self._end)
        if not room:
            raise ProtocolError("a line without an end")
        self._end += self._received(self._sock.recv_into(self._view[self._end :], room))

    def _receive_all(self, target: memoryview) -> None:
        """Fill ``target``; a server that sends no more than a trickle is too slow."""
        flags = socket.MSG_WAITALL if self._is_plain else 0
        ends_at_s = self._ends_at_s()
        while True:
            target = target[self._received(self._sock.recv_into(target, 0, flags)) :]
            if not target:
                return
            self._require_time(ends_at_s)

    def _ends_at_s(self) -> float:
        return time.monotonic() + self._timeout_s

    def _require_time(self, ends_at_s: float) -> None:
        if time.monotonic() > ends_at_s:
            raise TimeoutError

    def _received(self, num_bytes: int) -> int:
        if not num_bytes:
            raise ConnectionResetError("it has closed the connection")
        return num_bytes


def _drop_sent(pieces: list[memoryview], num_bytes: int) -> None:
    while pieces and num_bytes >= len(pieces[0]):
        num_bytes -= len(pieces.pop(0))
    if num_bytes:
        pieces[0] = pieces[0][num_bytes:]


def _odd(line: bytes) -> Exception:
    if line[:1] == b"-":
        return RefusedError(line[1:].decode(errors="replace"))
    return ProtocolError("a reply of another kind than was asked for")
