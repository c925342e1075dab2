"""Looking at one tier's copy of a block: nothing is used by that, and what is bad is dropped all the same."""

from __future__ import annotations

import threading

import pytest

from kvstore.absences import Cause
from kvstore.errors import BackendError
from kvstore.store import TieredStore
from tests.kvstore.conftest import BLOCK_BYTES, Rig
from tests.kvstore.faults import raising, waiting


def look(rig: Rig, store: TieredStore, number: int, tier: str) -> bytes | None:
    out = bytearray(BLOCK_BYTES)
    is_there = store.copies.read_into(rig.key(number), tier, memoryview(out)).result(5.0)
    return bytes(out) if is_there else None


def test_each_tiers_own_copy_is_read(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1, 2)
    assert store.copies.where([rig.key(1), rig.key(2), rig.key(3)]) == [
        ("host", "disk"),
        ("host", "disk"),
        (),
    ]
    assert store.copies.num_stored == 4
    assert look(rig, store, 1, "host") == look(rig, store, 1, "disk") == bytes(rig.payload(1))
    assert look(rig, store, 3, "host") is look(rig, store, 3, "disk") is None


def test_a_look_is_no_use(rig: Rig) -> None:
    store = rig.open(host_blocks=2)
    rig.put(store, 1)
    rig.put(store, 2)
    before, ends = store.statistics(), store._index._records[rig.key(1)].used_ms
    rig.now_s += 10.0
    for tier in ("host", "disk"):
        assert look(rig, store, 1, tier) == bytes(rig.payload(1))

    assert store.statistics() == before
    assert store._index._records[rig.key(1)].used_ms == ends
    assert store.num_holds == 0
    rig.put(store, 3)
    assert store.copies.where([rig.key(1)]) == [("disk",)], "it is the first to go as if nobody had looked"


def test_a_corrupt_copy_is_dropped_and_counted_like_one_that_is_loaded(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    header, payload = rig.medium.frames[rig.key(1)]
    rig.medium.frames[rig.key(1)] = header, payload[:-1] + b"\x07"

    assert look(rig, store, 1, "disk") is None
    assert rig.counts(store, "disk")["corrupt"] == 1
    assert store.copies.where([rig.key(1)]) == [("host",)]


def test_one_that_its_medium_lost_is_missing(rig: Rig) -> None:
    store = rig.open(host_blocks=0)
    rig.put(store, 1)
    rig.medium.frames.clear()

    assert look(rig, store, 1, "disk") is None
    assert store.why_absent(rig.key(1)).cause is Cause.MISSING


def test_a_fault_is_a_miss_and_leaves_the_block_where_it_is(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    rig.medium.fail = raising("get", BackendError("disk", "get", "not now"))
    assert look(rig, store, 1, "disk") is None
    assert rig.counts(store, "disk")["read_faults"] == 1
    assert store.copies.where([rig.key(1)]) == [("host", "disk")]


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_block_of_another_length_is_not_read(rig: Rig, tier: str) -> None:
    store = rig.open()
    rig.put(store, 1)
    out = memoryview(bytearray(BLOCK_BYTES // 2))
    assert not store.copies.read_into(rig.key(1), tier, out).result(5.0)
    assert store.num_holds == 0


def test_a_copy_is_not_evicted_while_it_is_read(rig: Rig) -> None:
    store = rig.open(host_blocks=0, disk_blocks=1)
    rig.put(store, 1)
    until = threading.Event()
    rig.medium.fail = waiting("get", until)
    reading = store.copies.read_into(rig.key(1), "disk", memoryview(bytearray(BLOCK_BYTES)))
    rig.put(store, 2)
    assert rig.tiers(store, 1, 2) == ["disk", None]
    until.set()
    assert reading.result(5.0)
    rig.put(store, 2)
    assert rig.tiers(store, 1, 2) == [None, "disk"]


def test_a_closed_store_reads_nothing_more(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    store.close()
    assert look(rig, store, 1, "disk") is None
