"""When a load for vLLM is given up: on a clock that moves by hand."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Any

import pytest
import torch

from engine_adapter.vllm.loads import Load
from engine_adapter.vllm.orders import LoadOrder, Told
from engine_adapter.vllm.pool import Pool
from kvstore.leases import Hit
from kvstore.loading import Load as Transfer
from kvstore.loading import SharedBytes, Ticket

NUM = 10


class SlowStore:
    """A store whose blocks come when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.transfers: list[Transfer] = []
        self.num_given_back = 0

    def now_s(self) -> float:
        return self.now

    def lookup(self, keys: Any) -> Hit:
        return Hit(keys, ("disk",) * len(keys), (), self.now + 30, self._released)

    def load(self, _hit: Hit, _index: int, _deadline_s: float, on_done: Callable[[], None]) -> Ticket:
        transfer = Transfer()
        self.transfers.append(transfer)
        ticket = transfer.join(on_done)
        assert ticket is not None
        return ticket

    def come(self, index: int, data: bytes | None = None) -> None:
        data = bytes(64) if data is None else data
        shared = SharedBytes(memoryview(bytearray(data)), self._back)
        self.transfers[index].finish(lambda _num: shared)

    def miss(self, index: int) -> None:
        self.transfers[index].finish(None)

    def _back(self) -> None:
        self.num_given_back += 1

    def _released(self, _records: Any) -> None:
        self.is_released = True


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


def begun(store: SlowStore, **facts: Any) -> tuple[Load, Told]:
    cache = torch.zeros(NUM, 4, 8, dtype=torch.bfloat16)
    order = LoadOrder("r", (tuple(bytes([key]) for key in range(NUM)),), tuple(range(NUM)), True, **facts)
    told = Told()
    any_store: Any = store
    return Load(order, 0, any_store, Pool({"layer": cache}, NUM), 10.0, lambda: told, Event()), told


def test_it_is_over_when_all_blocks_are_here(store: SlowStore) -> None:
    load, told = begun(store)
    for index in reversed(range(NUM)):
        assert not load.advance()
        store.now += 0.1
        store.come(index)
    store.now += 5
    assert load.advance()

    assert load.num_here == NUM
    assert store.is_released
    assert store.num_given_back == NUM
    # The times are those of the arrival, not of the look at it.
    assert [round(block.arrived_s - 100, 1) for block in told.arrived] == [
        round(0.1 * (NUM - index), 1) for index in range(NUM)
    ]


def test_a_block_that_misses_ends_it_with_those_before(store: SlowStore) -> None:
    load, told = begun(store)
    for index in (0, 1, 3):
        store.come(index)
    store.miss(2)

    assert load.advance()
    assert load.num_here == 2
    assert len(told.given_up) == 7
    store.come(4)
    assert store.num_given_back == 4


def test_a_block_of_another_length_is_a_miss(store: SlowStore) -> None:
    load, _ = begun(store)
    store.come(0, bytes(63))
    assert load.advance()
    assert load.num_here == 0
    assert store.num_given_back == 1


def test_it_ends_at_its_deadline(store: SlowStore) -> None:
    load, _ = begun(store)
    store.now += 9.9
    assert not load.advance()
    store.now += 0.2
    assert load.advance()


WORTH_S = tuple(0.1 * num for num in range(NUM + 1))


def test_a_load_that_stalls_is_given_up_once_computing_has_lost_its_patience(store: SlowStore) -> None:
    load, _ = begun(store, worth_s=WORTH_S, patience_s=0.05)
    store.now += 0.04
    assert not load.advance()
    store.now += 0.02
    assert load.advance()


def test_blocks_that_came_buy_time_in_whatever_order(store: SlowStore) -> None:
    load, _ = begun(store, worth_s=WORTH_S, patience_s=0.05)
    store.come(2)
    store.come(1)
    store.now += 0.22
    assert not load.advance()
    store.now += 0.04
    assert load.advance()
    assert load.num_here == 0


def test_a_load_that_has_become_slower_than_computing_is_given_up(store: SlowStore) -> None:
    load, _ = begun(store, worth_s=WORTH_S, patience_s=0.05)
    for index in range(5):
        store.now += 0.01
        store.come(index)
        assert not load.advance()
    for index in range(5, 9):  # slower than computing from here on, though far from late
        store.now += 0.18
        store.come(index)
        load.advance()
    assert load.advance()
    assert 5 < load.num_here < NUM


def test_without_costs_only_the_deadline_counts(store: SlowStore) -> None:
    load, _ = begun(store)
    store.now += 5
    assert not load.advance()


def test_giving_up_twice_is_giving_up_once(store: SlowStore) -> None:
    load, told = begun(store)
    load.give_up()
    load.give_up()
    assert len(told.given_up) == NUM
    assert load.advance()
    assert load.num_here == 0
