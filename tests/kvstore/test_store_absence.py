"""Why a block is not there: the store remembers what became of those that left."""

from __future__ import annotations

import threading

import pytest

from kvstore import absences
from kvstore.absences import Absence, Absences, Cause
from kvstore.errors import BackendError
from kvstore.store import TieredStore
from kvstore.tier import WriteMode
from policies.admission import WorthLoading
from tests.eventually import eventually
from tests.kvstore.conftest import Rig, SharedDict
from tests.kvstore.faults import raising, waiting


def why(rig: Rig, store: TieredStore, number: int) -> Absence:
    return store.why_absent(rig.key(number))


def test_a_block_that_nobody_stored_was_never_stored(rig: Rig) -> None:
    assert why(rig, rig.open(), 1) == Absence(Cause.NEVER_STORED)


def test_a_block_that_is_there_says_so(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    assert why(rig, store, 1) == Absence(Cause.PRESENT, "host")


def test_an_evicted_block_says_from_where_and_when(rig: Rig) -> None:
    store = rig.open(host_blocks=1, disk_blocks=0)
    rig.put(store, 1)
    rig.now_s = 2000.0
    rig.put(store, 2)
    assert why(rig, store, 1) == Absence(Cause.EVICTED, "host", 2_000_000)


def test_the_last_tier_that_lets_a_block_go_counts(rig: Rig) -> None:
    store = rig.open(host_blocks=1, disk_blocks=2)
    rig.put(store, 1)
    rig.put(store, 2)
    assert why(rig, store, 1) == Absence(Cause.PRESENT, "disk")
    rig.put(store, 3)
    assert why(rig, store, 1).cause is Cause.EVICTED
    assert why(rig, store, 1).tier == "disk"


def test_a_block_stored_again_is_forgotten_there(rig: Rig) -> None:
    store = rig.open(host_blocks=1, disk_blocks=0)
    rig.put(store, 1)
    rig.put(store, 2)
    rig.put(store, 1)
    assert why(rig, store, 1).cause is Cause.PRESENT
    store.clear()
    assert why(rig, store, 1) == Absence(Cause.CLEARED, "host", 1_000_000)


@pytest.mark.parametrize("is_looked_at", [False, True])
def test_an_expired_block_says_so_whether_or_not_it_has_been_removed(rig: Rig, is_looked_at: bool) -> None:
    store = rig.open(disk_blocks=0)
    rig.put(store, 1, ttl_s=10.0)
    rig.now_s += 10.0
    if is_looked_at:
        store.lookup([])
    assert why(rig, store, 1) == Absence(Cause.EXPIRED, "host", 1_010_000)


def test_a_block_whose_bytes_are_bad_was_corrupt_and_one_that_is_lost_is_missing(rig: Rig) -> None:
    store = rig.open(host_blocks=0)
    rig.put(store, 1, 2)
    header, payload = rig.medium.frames[rig.key(1)]
    rig.medium.frames[rig.key(1)] = header, bytes([payload[0] ^ 1]) + payload[1:]
    del rig.medium.frames[rig.key(2)]
    assert not rig.get(store, 1)
    assert not rig.get(store, 2)
    assert why(rig, store, 1) == Absence(Cause.CORRUPT, "disk", 1_000_000)
    assert why(rig, store, 2) == Absence(Cause.MISSING, "disk", 1_000_000)


def test_what_a_shared_medium_denies_is_missing(rig: Rig) -> None:
    rig.medium = SharedDict()
    store = rig.open(host_blocks=0)
    rig.put(store, 1)
    rig.medium.frames.clear()
    inquiry = store.inquire([rig.key(1)], rig.now_s + 1.0)
    assert inquiry is not None
    assert inquiry.wait(5.0)
    assert why(rig, store, 1).cause is Cause.MISSING


def test_a_block_that_was_removed_by_hand_was_cleared(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    store.evict([rig.key(1)])
    assert why(rig, store, 1).cause is Cause.CLEARED


def test_a_block_that_no_tier_admits_was_dropped(rig: Rig) -> None:
    store = rig.open(admission=WorthLoading(lambda _offer: True))
    assert rig.put(store, 1) == 0
    assert why(rig, store, 1).cause is Cause.DROPPED


def test_a_block_without_room_was_dropped_by_the_tier_that_had_none(rig: Rig) -> None:
    store = rig.open(host_blocks=1, disk_blocks=0)
    rig.put(store, 1)
    hit = store.lookup([rig.key(1)])
    assert rig.put(store, 2) == 0
    hit.release()
    assert why(rig, store, 2) == Absence(Cause.DROPPED, "host", 1_000_000)


def test_a_block_dropped_below_is_there_as_long_as_memory_has_it(rig: Rig) -> None:
    store = rig.open()
    rig.medium.fail = raising("put", BackendError("disk", "put", "no"))
    rig.put(store, 1)
    assert why(rig, store, 1) == Absence(Cause.PRESENT, "host")


def test_a_block_that_memory_evicts_and_the_tier_below_cannot_write_was_dropped(rig: Rig) -> None:
    store = rig.open(host_blocks=1, write_mode=WriteMode.BACK)
    rig.medium.fail = raising("put", BackendError("disk", "put", "no"))
    rig.put(store, 1)
    rig.put(store, 2)
    assert why(rig, store, 1) == Absence(Cause.DROPPED, "disk", 1_000_000)


def test_a_block_that_memory_evicts_and_a_full_queue_refuses_was_dropped(rig: Rig) -> None:
    store = rig.open(host_blocks=1, write_mode=WriteMode.BACK, max_queued_writes=1)
    may_write, written = threading.Event(), list[bytes]()
    rig.medium.fail = waiting("put", may_write, written)
    rig.put(store, 0)
    rig.put(store, 1, flush=False)
    eventually(lambda: written == [rig.key(0)])
    rig.put(store, *range(2, 6), flush=False)
    assert why(rig, store, 4) == Absence(Cause.DROPPED, "disk", 1_000_000)
    may_write.set()
    assert store.flush(5.0)


def test_a_block_in_a_tier_that_is_left_out_says_that_it_is_paused(rig: Rig) -> None:
    store = rig.open(host_blocks=0)
    rig.put(store, 1)
    rig.medium.fail = raising("get", BackendError("disk", "get", "no"))
    for _ in range(3):
        assert not rig.get(store, 1)
    assert why(rig, store, 1) == Absence(Cause.PAUSED, "disk")


def test_what_the_engines_pool_let_go_is_remembered_as_well(rig: Rig) -> None:
    store = rig.open()
    store.device_added(rig.key(1), b"")
    assert why(rig, store, 1) == Absence(Cause.PRESENT, "device")
    store.device_removed(rig.key(1))
    assert why(rig, store, 1) == Absence(Cause.EVICTED, "device", 1_000_000)


def test_a_block_that_is_back_takes_no_place_in_the_memory(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absences, "_MAX_REMEMBERED", 2)
    store = rig.open(disk_blocks=0)
    rig.put(store, 1, 2, 3)
    store.evict([rig.key(1), rig.key(2)])
    rig.put(store, 2)
    store.evict([rig.key(3)])
    assert why(rig, store, 1).cause is Cause.CLEARED


def test_the_memory_is_bounded_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absences, "_MAX_REMEMBERED", 2)
    memory = Absences(lambda: 5)
    for key in (b"a", b"b", b"a", b"c"):
        memory.note(key, Cause.EVICTED, 1)
    assert [memory.get(key) for key in (b"a", b"b", b"c")] == [
        (Cause.EVICTED, 1, 5), None, (Cause.EVICTED, 1, 5)
    ]  # fmt: skip
