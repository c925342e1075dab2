"""Bounds on what comes before a request is known: uvicorn takes heads of any length, as slow as they come."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    from asyncio.events import TimerHandle

_MOST_HEAD_BYTES = 64 << 10
_MOST_AHEAD = 16
_HEAD_S = 20.0


class BoundedHeads(HttpToolsProtocol):
    """Uvicorn's HTTP, for clients who have shown no token yet.

    A connection ends that sends more than 64 KiB (and what is read at once) without a whole head or any of a
    body, that asks for more than 16 answers ahead, or that lets us wait for a head for 20 s.
    """

    _num_bytes = 0
    _gets_on = False
    _waiting: TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take some bytes in, unless there are too many that come to nothing."""
        self._gets_on = False
        super().data_received(data)
        self._num_bytes = 0 if self._gets_on else self._num_bytes + len(data)
        if self.transport.is_closing():
            return
        if self._num_bytes > _MOST_HEAD_BYTES:
            self.send_400_response("The head of the request is too large.")
        elif self._is_idle and self._waiting is None:
            self._wait_for_head()

    def on_headers_complete(self) -> None:
        """Begin a request; raises an error, which ends the connection, for one too many."""
        if len(self.pipeline) >= _MOST_AHEAD:
            raise OverflowError(f"more than {_MOST_AHEAD} requests wait for their turn")
        self._gets_on = True
        self._stop_waiting()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take in a piece of the latest request's body."""
        self._gets_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that a request is whole."""
        self._gets_on = True
        super().on_message_complete()

    @property
    def _is_idle(self) -> bool:
        is_new = self.cycle is None
        return is_new or self.cycle.response_complete

    def _wait_for_head(self) -> None:
        self._waiting = self.loop.call_later(_HEAD_S, self._end_wait)

    def _end_wait(self) -> None:
        self._waiting = None
        if self._is_idle:
            self.transport.close()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
