"""Waiting for the store's transfers without blocking the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from api.few_threads import FewThreads
from kvstore.loading import OnDone


class Begun(Protocol):
    """Something under way."""

    def done(self) -> bool:
        """Say whether it has ended."""
        ...

    def abandon(self) -> None:
        """Give it up."""
        ...


_B = TypeVar("_B", bound=Begun)


async def ended(begin: Callable[[OnDone], _B | None], timeout_s: float, threads: FewThreads) -> _B | None:
    """Begin something on ``threads`` that calls back when it is done, and wait.

    ``None``: nothing was begun, or it was not done in time.
    """
    loop, is_over = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        loop.call_soon_threadsafe(is_over.set)

    begun = await threads.run(lambda: begin(tell), lambda left: None if left is None else left.abandon())
    if begun is None or begun.done():
        return begun
    try:
        await asyncio.wait_for(is_over.wait(), timeout_s)
    except BaseException as error:
        if begun.done():
            return begun
        begun.abandon()
        if isinstance(error, TimeoutError):
            return None
        raise
    return begun
