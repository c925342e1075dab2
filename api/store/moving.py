"""Blocks on their way to and from clients over HTTP: bounded for each, in bytes and in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvstore.errors import OverloadedError
from kvstore.remote.session import Session

_MOST_BYTES = 1 << 30
_MOST_BYTES_EACH = 256 << 20


class Moving:
    """Bytes that move, by client. Used by one event loop."""

    def __init__(self, most_bytes: int = _MOST_BYTES, most_bytes_each: int = _MOST_BYTES_EACH) -> None:
        self._most_bytes = most_bytes
        self._most_bytes_each = most_bytes_each
        self._of_each: Counter[Session] = Counter()

    @contextmanager
    def moves(self, client: Session, nbytes: int) -> Iterator[None]:
        """Count bytes while they move.

        Raises ``OverloadedError`` when there are too many already; those of one client alone always may.
        """
        own_bytes, all_bytes = self._of_each[client], self._of_each.total()
        if own_bytes and (
            own_bytes + nbytes > self._most_bytes_each or all_bytes + nbytes > self._most_bytes
        ):
            raise OverloadedError(len(self._of_each))
        self._of_each[client] += nbytes
        try:
            yield
        finally:
            self._of_each[client] -= nbytes
            if not self._of_each[client]:
                del self._of_each[client]


class Octets(Response):
    """Plain bytes."""

    media_type = "application/octet-stream"


class BlockResponse(Octets):
    """A block's bytes, a copy of their own: however slowly they are read, nobody else waits for them."""

    def __init__(self, data: memoryview, headers: Mapping[str, str], moving: Moving, client: Session) -> None:
        super().__init__(data, headers=headers)
        self._moving = moving
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  as ASGI has it
        with self._moving.moves(self._client, len(self.body)):
            start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            await send(start)
            await send({"type": "http.response.body", "body": self.body, "more_body": True})
            # Servers take this only when nearly all has left: the bytes count until then.
            await send({"type": "http.response.body", "body": b"", "more_body": False})
