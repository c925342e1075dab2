"""Request bodies as they arrive, piece by piece: uvicorn collects them, and copies each byte twice more."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from api.heads import BoundedHeads

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_MOST_WAITING_BYTES = 1 << 20
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class BodiesInPieces(BoundedHeads):
    """Uvicorn's HTTP, but for how a body is handed on."""

    _body: _Body

    def on_headers_complete(self) -> None:
        """Begin a request, which runs when we have returned."""
        super().on_headers_complete()
        self._body = _Body(self.cycle)
        self.cycle.receive = self._body.receive  # type: ignore[method-assign]  # this one cycle's

    def on_body(self, body: bytes) -> None:
        """Take in a piece of the latest request's body."""
        self._gets_on = True
        if not self.cycle.response_complete:
            self._body.add(body)


class _Body:
    """What has arrived of one request's body and was not handed on yet; reading pauses when it is much."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._pieces: deque[bytes] = deque()
        self._num_bytes = 0
        self._is_told = False

    def add(self, piece: bytes) -> None:
        """Take a piece in."""
        self._pieces.append(piece)
        self._num_bytes += len(piece)
        if self._num_bytes > _MOST_WAITING_BYTES:
            self._cycle.flow.pause_reading()
        self._cycle.message_event.set()

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next piece, or that the client is gone or has its answer; waits for either."""
        cycle = self._cycle
        if cycle.waiting_for_100_continue and not cycle.transport.is_closing():
            cycle.transport.write(_CONTINUE)
            cycle.waiting_for_100_continue = False
        while not cycle.disconnected and not cycle.response_complete:
            if self._pieces or not (cycle.more_body or self._is_told):
                return self._next()
            cycle.flow.resume_reading()
            cycle.message_event.clear()
            await cycle.message_event.wait()
        return {"type": "http.disconnect"}

    def _next(self) -> ASGIReceiveEvent:
        piece = self._pieces.popleft() if self._pieces else b""
        self._num_bytes -= len(piece)
        more_body = self._cycle.more_body or bool(self._pieces)
        self._is_told = not more_body
        return {"type": "http.request", "body": piece, "more_body": more_body}
