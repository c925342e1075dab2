"""The crossing from the engine's thread to the event loop: the only place where the two meet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Protocol

from engine_adapter.engine.events import Event, Finished, OnEvent
from engine_adapter.engine.request import Request


class Submits(Protocol):
    """What the service asks of an engine."""

    def submit(self, request: Request, on_event: OnEvent) -> Any:
        """Begin a request; ``on_event`` is called from the engine's thread."""
        ...

    def cancel(self, handle: Any) -> None:
        """End a request early; nothing happens when it has ended."""
        ...


class RunningRequest:
    """One request in the engine, heard from the event loop that began it.

    Construction submits it and raises what the engine raises. Whoever made it calls ``cancel`` in
    the end, whatever happened; on a finished request that does nothing.
    """

    def __init__(self, engine: Submits, request: Request, observe: OnEvent) -> None:
        self.num_answers = request.sampling.n
        self._engine = engine
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._handle = engine.submit(request, self._on_event)

    async def events(self) -> AsyncIterator[Event]:
        """Yield the events as they come, to the end of the last answer."""
        num_open = self.num_answers
        while num_open:
            event = await self._events.get()
            num_open -= isinstance(event, Finished)
            yield event

    async def all_events(self) -> list[Event]:
        """Wait for the end of the last answer, and return all events."""
        return [event async for event in self.events()]

    def cancel(self) -> None:
        """Tell the engine that nobody listens any more."""
        self._engine.cancel(self._handle)

    def _on_event(self, event: Event) -> None:
        """Pass an event on; called from the engine's thread, and never waits."""
        self._observe(event)
        with suppress(RuntimeError):  # The loop is closed: whoever listened is gone.
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
