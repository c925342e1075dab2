"""Copies that take their time: who waits for them, what they hold until they are complete.

Here a copy is made when the test lets it, or when somebody has to wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Event as Flag

import pytest

from backends.faulty import Call, Fault, Operation
from engine_adapter.engine.costs import CostBook
from engine_adapter.engine.landing import Landings
from engine_adapter.engine.request import CacheUse
from engine_adapter.engine.storing import Storable, StoreQueue
from kvstore.clock import Clock
from kvstore.loading import LoadedBlock, SharedBytes
from tests.engine_adapter.rig import (
    BLOCK_TOKENS,
    SLOT_BYTES,
    CleanIds,
    Events,
    MakeRig,
    Rig,
    greedy,
    prompt_of,
    slow_tier,
)
from tests.eventually import eventually
from tests.late_cuda import LateCuda

MakeLateRig = Callable[..., Rig]


@pytest.fixture
def cuda() -> LateCuda:
    return LateCuda()


@pytest.fixture
def make_late_rig(make_rig: MakeRig, cuda: LateCuda) -> MakeLateRig:
    return lambda **options: make_rig(copies=cuda.copies, **options)


def publish(rig: Rig, queue: StoreQueue, num_blocks: int) -> None:
    """Publish prompts of one block each and queue them; nobody else holds them then."""
    blocks = rig.pool.allocate(num_blocks)
    assert blocks is not None
    for seed, block in enumerate(blocks):
        (key,) = rig.keys(prompt_of(BLOCK_TOKENS, seed))
        assert rig.pool.publish(block, key, b"")
        queue.add(Storable(rig.model.namespace, key, b"", 0, None))
    rig.pool.release(blocks)


def num_stored(rig: Rig) -> int:
    return rig.store.statistics().tiers[1].num_blocks


def test_a_block_is_in_the_store_when_its_copy_is_complete(
    make_late_rig: MakeLateRig, cuda: LateCuda
) -> None:
    rig = make_late_rig()
    queue = StoreQueue(rig.pool, rig.store)
    publish(rig, queue, 3)
    assert queue.store_some(is_idle=True)
    assert (queue.num_leaving, num_stored(rig)) == (3, 0)
    assert not queue.store_some(is_idle=True), "nothing has happened since"

    cuda.out.run()

    assert queue.store_some(is_idle=True)
    assert (queue.num_leaving, num_stored(rig)) == (0, 3)


def test_a_block_that_is_being_copied_is_not_evicted(make_late_rig: MakeLateRig, cuda: LateCuda) -> None:
    rig = make_late_rig(num_blocks=8)
    queue = StoreQueue(rig.pool, rig.store)
    publish(rig, queue, 2)
    queue.store_some(is_idle=True)
    assert rig.pool.num_available == 6
    rig.pool.clear()
    assert rig.pool.num_free == 6

    cuda.out.run()
    queue.store_some(is_idle=True)

    assert rig.pool.num_available == 8


def test_who_needs_room_waits_for_as_many_copies_as_it_needs(
    make_late_rig: MakeLateRig, cuda: LateCuda
) -> None:
    rig = make_late_rig(num_blocks=16)
    queue = StoreQueue(rig.pool, rig.store)
    publish(rig, queue, 4)
    queue.make_available(14, waits=False)
    assert (queue.num_leaving, rig.pool.num_available, num_stored(rig)) == (4, 12, 0)
    queue.make_available(14, waits=True)
    assert (queue.num_leaving, rig.pool.num_available, num_stored(rig)) == (2, 14, 2)
    queue.store_all()
    assert (queue.num_leaving, rig.pool.num_available, num_stored(rig)) == (0, 16, 4)


def test_no_more_blocks_are_copied_at_a_time_than_a_quarter_of_the_pool(make_late_rig: MakeLateRig) -> None:
    rig = make_late_rig(num_blocks=16)
    queue = StoreQueue(rig.pool, rig.store)
    publish(rig, queue, 6)
    queue.store_some(is_idle=True)
    assert (queue.num_leaving, num_stored(rig)) == (4, 2)
    queue.store_all()


def test_a_copy_that_fails_costs_its_storing_alone(make_late_rig: MakeLateRig, cuda: LateCuda) -> None:
    rig = make_late_rig()
    queue = StoreQueue(rig.pool, rig.store)
    publish(rig, queue, 2)

    def fail() -> None:
        raise RuntimeError("the device is gone")

    cuda.out.add(fail)
    queue.store_all()

    assert (num_stored(rig), rig.pool.num_available) == (1, rig.pool.num_blocks)
    assert rig.arena.used_bytes == SLOT_BYTES


def test_what_is_dropped_is_not_stored_and_its_memory_comes_back_after_its_copy(
    make_late_rig: MakeLateRig, cuda: LateCuda
) -> None:
    rig = make_late_rig()
    queue = StoreQueue(rig.pool, rig.store)
    publish(rig, queue, 4)
    queue.store_some(is_idle=False)
    assert rig.arena.used_bytes == 2 * SLOT_BYTES

    queue.drop_all()

    assert len(cuda.out) == 0
    assert (num_stored(rig), rig.arena.used_bytes) == (0, 0)
    assert rig.pool.num_available == rig.pool.num_blocks


def test_what_a_load_is_copied_from_is_kept_until_it_is_copied_whoever_has_the_block_by_then(
    make_late_rig: MakeLateRig, cuda: LateCuda
) -> None:
    rig, released = make_late_rig(num_blocks=1), list[int]()
    block_bytes = rig.pool.shape.block_bytes
    costs = CostBook(block_bytes, "host")
    landings = Landings(rig.pool, costs, Clock())
    for number in range(2):
        data = memoryview(bytearray([number + 1]) * block_bytes)
        shared = SharedBytes(data, partial(released.append, number))
        (block,) = rig.pool.allocate(1) or []
        landings.begin(block, LoadedBlock(shared))
        rig.pool.release([block])
    assert not landings.end_complete()
    assert (released, len(landings)) == ([], 2)

    cuda.into.run(len(cuda.into) // 2)

    assert landings.end_complete()
    assert (released, len(landings)) == ([0], 1)
    landings.end_all()
    assert (released, len(landings)) == ([0, 1], 0)
    rate = costs.loads(0.0)["host"].bytes_per_s
    assert rate == pytest.approx(block_bytes / 0.002), "the time of the copy, not of who looked after it"


def test_a_load_that_cannot_begin_gives_its_memory_back(
    make_late_rig: MakeLateRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, released = make_late_rig(), list[str]()

    def refuse(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(rig.pool, "write_block", refuse)
    landings = Landings(rig.pool, CostBook(1), Clock())
    with pytest.raises(RuntimeError):
        landings.begin(0, LoadedBlock(SharedBytes(memoryview(b""), lambda: released.append("staging"))))
    assert (released, len(landings)) == (["staging"], 0)


def test_no_step_waits_for_what_is_stored_and_the_idle_engine_sees_it_done(
    make_late_rig: MakeLateRig, cuda: LateCuda, clean_ids: CleanIds
) -> None:
    rig, prompt = make_late_rig(), prompt_of(75, 1)

    assert rig.engine.generate(greedy(prompt)).token_ids == clean_ids(prompt, 12)

    eventually(lambda: rig.pool.num_available == rig.pool.num_blocks - 10)  # those that are being copied
    assert num_stored(rig) == 0
    cuda.out.run()
    eventually(lambda: num_stored(rig) == 10)


def test_a_prompt_that_needs_the_room_of_blocks_being_copied_gets_it_when_they_are(
    make_late_rig: MakeLateRig, cuda: LateCuda, clean_ids: CleanIds
) -> None:
    rig, events = make_late_rig(num_blocks=40), Events()
    first, second = prompt_of(75, 1), prompt_of(280, 2)
    rig.engine.generate(greedy(first, 1))
    rig.engine.submit(greedy(second, 4), events)
    stores = rig.engine._prefix.traffic.stores
    eventually(lambda: stores.num_leaving == 9 and rig.engine.statistics().num_waiting == 1)

    cuda.out.run()

    assert events.finished().reason == "length"
    assert events.token_ids == clean_ids(second, 4)


def test_steps_see_the_blocks_that_are_on_their_way(
    make_late_rig: MakeLateRig, cuda: LateCuda, clean_ids: CleanIds
) -> None:
    rig, prompt = make_late_rig(), prompt_of(75, 1)
    rig.engine.generate(greedy(prompt, 1))
    rig.forget_device()

    answer = rig.engine.generate(greedy(prompt))

    assert answer.token_ids == clean_ids(prompt, 12)
    assert answer.usage.tokens_by_source == {"computed": 3, "host": 72}
    eventually(lambda: len(cuda.into) == 0)


class Loading:
    """A request in the middle of being loaded: its first block is held back, others are on their way."""

    def __init__(self, make_late_rig: MakeLateRig, cuda: LateCuda) -> None:
        self.gate, self.events, self.prompt = Flag(), Events(), prompt_of(75, 1)
        self._slow: list[bytes] = []
        script = [Fault(Operation.GET, self._hold_back)]
        self.rig = make_late_rig(num_blocks=10, tiers=slow_tier(script), load_deadline_s=30)
        self.rig.engine.generate(greedy(self.prompt, 1))
        self.rig.engine.flush(10)
        self.rig.forget_device()
        self._slow += self.rig.keys(self.prompt)[:1]
        self.handle = self.rig.engine.submit(greedy(self.prompt), self.events)
        eventually(lambda: len(cuda.into) > 0)

    def _hold_back(self, call: Call) -> int | None:
        if call.key in self._slow:
            self.gate.wait(10)
        return call.proceed()


def test_case_13_cancelled_while_its_blocks_are_copied_into_the_pool_and_others_get_them(
    make_late_rig: MakeLateRig, cuda: LateCuda, clean_ids: CleanIds
) -> None:
    loading = Loading(make_late_rig, cuda)
    engine, other, events = loading.rig.engine, prompt_of(70, 2), Events()

    engine.cancel(loading.handle)
    assert loading.events.finished().reason == "cancelled"
    engine.submit(greedy(other, 8, cache=CacheUse.OFF), events)
    events.wait_for_tokens(1)
    cuda.into.run()
    loading.gate.set()

    assert events.finished().reason == "length"
    assert events.token_ids == clean_ids(other, 8)
    assert engine.generate(greedy(loading.prompt, 4)).token_ids == clean_ids(loading.prompt, 4)


def test_closing_waits_for_what_is_being_loaded(make_late_rig: MakeLateRig, cuda: LateCuda) -> None:
    loading = Loading(make_late_rig, cuda)

    assert loading.rig.engine.close(5)

    assert loading.events.finished().reason == "cancelled"
    assert len(cuda.into) == 0
    loading.gate.set()
    eventually(lambda: loading.rig.arena.used_bytes == 0)
    assert loading.rig.store.num_holds == 0


def test_closing_stores_what_is_being_copied(make_late_rig: MakeLateRig, cuda: LateCuda) -> None:
    rig = make_late_rig()
    rig.engine.generate(greedy(prompt_of(75, 1)))

    assert rig.engine.close(5)

    assert len(cuda.out) == 0
    assert (num_stored(rig), rig.store.num_holds) == (10, 0)
    assert rig.pool.num_available == rig.pool.num_blocks


def test_a_broken_loop_stores_nothing_that_was_being_copied_and_waits_for_it(
    make_late_rig: MakeLateRig, cuda: LateCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_late_rig()
    rig.engine.generate(greedy(prompt_of(75, 1)))
    eventually(lambda: len(cuda.out) > 0)

    def broken(_self: object) -> bool:
        raise RuntimeError("out of order")

    monkeypatch.setattr("engine_adapter.engine.scheduler.Scheduler.plan", broken)
    rig.engine.submit(greedy([1]), Events())

    eventually(lambda: not rig.engine.health().ok and len(cuda.out) == 0)
    assert rig.engine.close(5)
    assert (num_stored(rig), rig.arena.used_bytes, rig.store.num_holds) == (0, 0, 0)
