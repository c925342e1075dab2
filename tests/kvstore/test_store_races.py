"""Two threads in the store at the same time, at the moments that matter."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from backends.host import HostBackend
from kvstore.arena import Slot
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import WriteMode
from tests.eventually import eventually
from tests.kvstore.conftest import BLOCK_BYTES, Rig, SharedDict

NUM_BLOCKS = 20


def pausing(until: threading.Event, reached: threading.Event) -> Callable[[HostBackend, bytes], Slot | None]:
    """Return a ``surrender`` that waits for ``until`` after saying that it was ``reached``."""
    surrender = HostBackend.surrender

    def paused(backend: HostBackend, key: bytes) -> Slot | None:
        reached.set()
        until.wait(10.0)
        return surrender(backend, key)

    return paused


def is_at_rest(store: TieredStore) -> bool:
    """Say whether nobody holds any block."""
    return store.num_holds == 0


def put_in_background(rig: Rig, store: TieredStore, number: int) -> threading.Thread:
    thread = threading.Thread(target=rig.put, args=(store, number), kwargs={"flush": False})
    thread.start()
    return thread


def test_a_victim_that_is_stored_again_before_it_has_left_memory_is_not_lost_with_its_old_bytes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = rig.open(host_blocks=2, disk_blocks=0)
    rig.put(store, 1)
    rig.put(store, 2)
    may_leave, is_leaving = threading.Event(), threading.Event()
    monkeypatch.setattr(HostBackend, "surrender", pausing(may_leave, is_leaving))
    storing = put_in_background(rig, store, 3)
    assert is_leaving.wait(5.0)

    assert rig.put(store, 1, flush=False) == 0, "the place under its key is not free yet"
    may_leave.set()
    storing.join()

    assert rig.tiers(store, 1, 2, 3) == [None, "host", "host"]
    assert not rig.get(store, 1)
    assert rig.put(store, 1) == 1
    assert rig.get(store, 1)


def test_a_use_noted_late_does_not_turn_the_order_of_uses_around(rig: Rig) -> None:
    store = rig.open(disk_blocks=0)
    rig.put(store, 1)
    rig.put(store, 2)
    earlier_s, rig.now_s = rig.now_s, rig.now_s + 1.0
    store.lookup([rig.key(2)]).release()
    rig.now_s = earlier_s  # a thread that read the clock before the other one had the lock
    store.lookup([rig.key(1)]).release()
    store.check()


class Traffic:
    """One thread's random use of a store; each block it stores has other bytes, and one value throughout."""

    def __init__(self, rig: Rig, store: TieredStore, seed: int) -> None:
        self.rig, self.store, self.rng = rig, store, random.Random(seed)
        self.num_loaded = 0

    def run(self) -> None:
        for _ in range(400):
            self.rng.choice([self.put, self.load, self.load, self.get, self.evict, self.inquire])()

    def put(self) -> None:
        number, version = self.rng.randrange(NUM_BLOCKS), self.rng.randrange(256)
        parent = self.rig.key(number - 1) if number else b""
        reservation = self.store.reserve(self.rig.namespace, self.rig.key(number), parent, BLOCK_BYTES)
        if reservation is not None:
            reservation.view[:] = bytes([number, version]) * (BLOCK_BYTES // 2)
            reservation.commit()

    def load(self) -> None:
        numbers = [self.rng.randrange(NUM_BLOCKS) for _ in range(4)]
        hit = self.store.lookup([self.rig.key(number) for number in numbers])
        tickets = [self.store.load(hit, index, self.rig.now_s + 1.0) for index in range(4)]
        for number, ticket in zip(numbers, tickets, strict=True):
            if self.rng.random() < 0.3:
                ticket.abandon()
                continue
            assert ticket.wait(10.0)
            if (block := ticket.take()) is not None:
                time.sleep(0.0002)
                self.verify(number, bytes(block.data))
                block.release()
        hit.release()

    def get(self) -> None:
        number, out = self.rng.randrange(NUM_BLOCKS), bytearray(BLOCK_BYTES)
        if self.store.get_into(self.rig.key(number), memoryview(out)):
            self.verify(number, bytes(out))

    def evict(self) -> None:
        self.store.evict([self.rig.key(self.rng.randrange(NUM_BLOCKS))])

    def inquire(self) -> None:
        keys = [self.rig.key(self.rng.randrange(NUM_BLOCKS)) for _ in range(4)]
        inquiry = self.store.inquire(keys, self.rig.now_s + 1.0)
        if inquiry is not None and self.rng.random() < 0.5:
            assert inquiry.wait(10.0)

    def verify(self, number: int, data: bytes) -> None:
        assert data == bytes([number, data[1]]) * (BLOCK_BYTES // 2), "another block's bytes"
        self.num_loaded += 1


@pytest.mark.parametrize("write_mode", list(WriteMode))
def test_threads_never_get_another_blocks_bytes_and_leave_the_books_in_order(
    rig: Rig, write_mode: WriteMode
) -> None:
    store = rig.open(host_blocks=4, disk_blocks=9, write_mode=write_mode, config=StoreConfig(audit_share=1.0))
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    traffic = [Traffic(rig, store, seed) for seed in range(6)]
    try:
        with ThreadPoolExecutor(len(traffic)) as threads:
            for running in [threads.submit(one.run) for one in traffic]:
                running.result()
    finally:
        sys.setswitchinterval(before_s)

    assert store.flush(10.0)
    assert sum(one.num_loaded for one in traffic) > 0
    assert rig.counts(store, "host")["corrupt"] == rig.counts(store, "disk")["corrupt"] == 0
    store.check()
    assert store.num_holds == store.statistics().staging_bytes == 0


def test_two_processes_on_one_medium_never_get_another_blocks_bytes(rig: Rig) -> None:
    rig.medium = SharedDict()
    stores = [rig.open(host_blocks=4, disk_blocks=9, config=StoreConfig(audit_share=1.0)) for _ in range(2)]
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    traffic = [Traffic(rig, store, seed) for seed, store in enumerate(stores * 3)]
    try:
        with ThreadPoolExecutor(len(traffic)) as threads:
            for running in [threads.submit(one.run) for one in traffic]:
                running.result()
    finally:
        sys.setswitchinterval(before_s)

    for store in stores:
        assert store.flush(10.0)
        assert rig.counts(store, "host")["corrupt"] == rig.counts(store, "disk")["corrupt"] == 0
        assert rig.counts(store, "disk")["found_blocks"] > 0
        eventually(partial(is_at_rest, store))  # a load that was given up may still be on its way
        store.check()
