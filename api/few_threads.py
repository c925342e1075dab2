"""Calls that may block for seconds, kept off the event loop and off the threads of everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from kvstore.errors import OverloadedError

_T = TypeVar("_T")


class FewThreads:
    """Runs calls on a few threads of its own; a bounded number waits. Used by one event loop."""

    def __init__(self, name: str, num_threads: int = 2, max_waiting: int = 16) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._most_open = num_threads + max_waiting
        self._max_waiting = max_waiting
        self._num_open = 0

    async def run(self, call: Callable[[], _T], unclaimed: Callable[[_T], object] | None = None) -> _T:
        """Return what ``call`` returns. Raises what it raises, or ``OverloadedError`` when too many wait.

        ``unclaimed`` is given what it returns when whoever asked is gone by then.
        """
        if self._num_open >= self._most_open:
            raise OverloadedError(self._max_waiting)
        self._num_open += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, call)
        future.add_done_callback(self._ended)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if unclaimed is not None:
                future.add_done_callback(partial(_hand, unclaimed))
            raise

    def close(self) -> None:
        """End the threads when their calls are done; idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ended(self, future: asyncio.Future[_T]) -> None:
        self._num_open -= 1
        if not future.cancelled():
            future.exception()  # nobody may be left to ask for it


def _hand(unclaimed: Callable[[_T], object], future: asyncio.Future[_T]) -> None:
    if not future.cancelled() and future.exception() is None:
        unclaimed(future.result())
