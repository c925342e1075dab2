"""Blocking calls on a few threads: bounded, and nobody else waits for them."""

from __future__ import annotations

import asyncio
from threading import Event

import pytest

from api.few_threads import FewThreads
from kvstore.errors import OverloadedError


def test_calls_beyond_the_bound_are_refused_until_others_have_ended() -> None:
    may_end = Event()

    def call() -> bool:
        return may_end.wait(20)

    async def run() -> None:
        threads = FewThreads("test", num_threads=1, max_waiting=1)
        open_calls = [asyncio.ensure_future(threads.run(call)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await threads.run(call)
        may_end.set()
        assert await asyncio.gather(*open_calls) == [True, True]
        assert await threads.run(lambda: 7) == 7
        threads.close()

    asyncio.run(run())


def test_a_call_that_nobody_waits_for_any_more_counts_until_it_ends() -> None:
    may_end = Event()

    async def run() -> None:
        threads = FewThreads("test", num_threads=1, max_waiting=0)
        left = asyncio.ensure_future(threads.run(lambda: may_end.wait(20)))
        await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(OverloadedError):
            await threads.run(lambda: 7)
        may_end.set()
        threads.close()

    asyncio.run(run())


def test_what_a_call_raises_is_raised() -> None:
    async def run() -> None:
        threads = FewThreads("test")
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0)
        threads.close()

    asyncio.run(run())


def test_what_comes_of_a_call_that_nobody_waits_for_is_handed_back() -> None:
    may_end, unclaimed = Event(), list[bool]()

    async def run() -> None:
        threads = FewThreads("test", num_threads=1)
        assert await threads.run(lambda: True, unclaimed.append)
        left = asyncio.ensure_future(threads.run(lambda: may_end.wait(20), unclaimed.append))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.sleep(0)
        may_end.set()
        await threads.run(lambda: True)
        threads.close()

    asyncio.run(run())
    assert unclaimed == [True]
