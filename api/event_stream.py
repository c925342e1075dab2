"""Server-sent events, with an end that is certain."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


def data_event(value: Mapping[str, Any] | None) -> bytes:
    """Return one event; ``None`` is the mark that ends a stream."""
    text = "[DONE]" if value is None else json.dumps(value, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


class EventStreamResponse(StreamingResponse):
    """A stream of events. ``on_end`` is called once it has ended, also when the client went away."""

    def __init__(self, events: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()
