"""Blocks that were found to be wrong: gone from every tier, and kept out until somebody says so."""

from __future__ import annotations

import threading

import pytest

from kvstore import absences
from kvstore.absences import Cause
from kvstore.statistics import State
from kvstore.tier import WriteMode
from tests.eventually import eventually
from tests.kvstore.conftest import NAMESPACE, DictBackend, Rig, SharedDict
from tests.kvstore.faults import waiting


def test_a_block_in_quarantine_is_gone_from_every_tier_and_from_whoever_holds_it(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1, 2)
    hit = store.lookup([rig.key(1), rig.key(2)])
    lent = store.load(hit, 0, rig.now_s + 1.0).take()
    assert lent is not None
    store.quarantine(rig.key(1))
    assert lent.data == rig.payload(1), "what is lent stays whole"
    assert store.load(hit, 0, rig.now_s + 1.0).take() is None
    lent.release()
    hit.release()
    assert store.flush(5.0)
    assert rig.medium.frames == {}
    assert rig.tiers(store, 1) == [None]
    assert not rig.get(store, 1)
    absence = store.why_absent(rig.key(1))
    assert (absence.cause, absence.tier) == (Cause.QUARANTINED, ""), "it was taken out of all of them"


def test_what_was_computed_on_a_wrong_block_goes_with_it_and_what_came_before_stays(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1, 2, 3, 4)
    rig.put(store, 8, 9)
    store.quarantine(rig.key(2))
    assert store.flush(5.0)
    assert rig.medium.frames.keys() == {rig.key(1), rig.key(8), rig.key(9)}
    assert rig.tiers(store, 1, 2, 3, 4) == ["host", None, None, None]
    assert store.why_absent(rig.key(4)).cause is Cause.QUARANTINED
    assert rig.put(store, 1, 2, 3, 4, 5) == 0, "and neither does what is computed on it from now on"
    assert store.ended([rig.key(1), rig.key(2), rig.key(7)]) == [rig.key(2), rig.key(7)]
    assert store.peek([rig.key(1), rig.key(2), rig.key(8)]) == ("host", None, None)


def test_a_block_of_the_engines_pool_that_was_computed_on_a_wrong_one_is_let_go(rig: Rig) -> None:
    store = rig.open()
    store.quarantine(rig.key(1))
    store.device_added(rig.key(2), rig.key(1))
    store.device_added(rig.key(3), rig.key(2))
    assert store.ended([rig.key(3)]) == [rig.key(3)]


def test_it_is_not_stored_again_until_the_store_is_cleared(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    store.quarantine(rig.key(1))
    assert rig.put(store, 1) == 0
    store.clear("disk")
    assert rig.put(store, 1) == 0, "one tier's clearing does not end it"
    store.clear()
    assert rig.put(store, 1) == 1
    assert rig.get(store, 1)


def test_health_is_degraded_and_says_how_to_go_on(rig: Rig) -> None:
    store = rig.open()
    assert store.statistics().num_quarantined == 0
    store.quarantine(rig.key(1))
    store.quarantine(rig.key(1))
    store.quarantine(rig.key(2))
    health = store.health()
    assert health.state is State.DEGRADED
    assert health.reason == (
        "2 blocks that are wrong, or were computed on wrong ones, are in quarantine: "
        "find the cause, then clear the store"
    )
    assert store.statistics().num_quarantined == 2
    assert store.why_absent(rig.key(1)).cause is Cause.QUARANTINED
    store.clear()
    assert (store.health().state, store.health().reason) == (State.OK, "")


def test_the_engines_pool_is_told_to_let_go_and_its_copy_is_not_found(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    store.device_added(rig.key(1), b"")
    store.quarantine(rig.key(1))
    assert rig.tiers(store, 1) == [None]
    assert store.ended([rig.key(3), rig.key(1)]) == [rig.key(1)]


def test_a_block_that_the_engines_pool_still_has_stays_in_quarantine(rig: Rig) -> None:
    store = rig.open()
    store.device_added(rig.key(1), b"")
    store.quarantine(rig.key(1))
    store.clear()
    assert store.ended([rig.key(1)]) == [rig.key(1)]
    store.device_removed(rig.key(1))
    assert store.why_absent(rig.key(1)).cause is Cause.QUARANTINED
    store.clear()
    assert store.ended([rig.key(1)]) == []
    assert rig.put(store, 1) == 1


def test_a_reservation_that_is_committed_afterwards_is_not_seen(rig: Rig) -> None:
    store = rig.open()
    reservation = store.reserve(NAMESPACE, rig.key(1), b"", 4096)
    assert reservation is not None
    store.quarantine(rig.key(1))
    reservation.view[:] = rig.payload(1)
    reservation.commit()
    assert store.flush(5.0)
    assert rig.medium.frames == {}
    assert [tier.num_blocks for tier in store.statistics().tiers] == [0, 0, 0]
    store.clear()
    assert rig.tiers(store, 1) == [None]


@pytest.mark.parametrize("write_mode", list(WriteMode))
def test_a_write_under_way_leaves_nothing_below(rig: Rig, write_mode: WriteMode) -> None:
    store = rig.open(host_blocks=1, write_mode=write_mode)
    may_write = threading.Event()
    asked_for: list[bytes] = []
    rig.medium.fail = waiting("put", may_write, asked_for)
    rig.put(store, 1, flush=False)
    store.lookup([rig.key(1)]).release()
    rig.put(store, 2, flush=False)
    eventually(lambda: bool(asked_for))
    store.quarantine(rig.key(1))
    may_write.set()
    assert store.flush(5.0)
    assert rig.key(1) not in rig.medium.frames
    assert rig.tiers(store, 1) == [None]


def test_a_write_that_waits_is_not_begun(rig: Rig) -> None:
    store = rig.open()
    may_write = threading.Event()
    asked_for: list[bytes] = []
    rig.medium.fail = waiting("put", may_write, asked_for)
    rig.put(store, 1, 2, flush=False)
    eventually(lambda: bool(asked_for))
    store.quarantine(rig.key(2))
    may_write.set()
    assert store.flush(5.0)
    assert asked_for == [rig.key(1)]


def test_a_load_under_way_is_a_miss(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    store = rig.open(host_blocks=0)
    rig.put(store, 1)
    is_read, may_read = threading.Event(), threading.Event()

    def answer_late(key: bytes, header: memoryview, payload: memoryview) -> int | None:
        nbytes = DictBackend.get_into(rig.medium, key, header, payload)
        is_read.set()
        may_read.wait(5.0)
        return nbytes

    monkeypatch.setattr(rig.medium, "get_into", answer_late)
    hit = store.lookup([rig.key(1)])
    ticket = store.load(hit, 0, rig.now_s + 1.0)
    assert is_read.wait(5.0)
    store.quarantine(rig.key(1))
    may_read.set()
    assert ticket.wait(5.0)
    assert ticket.take() is None
    hit.release()


def test_an_inquiry_does_not_bring_it_back_and_what_was_found_on_a_shared_medium_is_deleted(rig: Rig) -> None:
    rig.medium = SharedDict()
    theirs, mine = rig.open(), rig.open()
    rig.put(theirs, 1, 2)
    rig.put(theirs, 5)
    mine.quarantine(rig.key(1))
    inquiry = mine.inquire([rig.key(5), rig.key(1), rig.key(2)], rig.now_s + 1.0)
    assert inquiry is not None
    assert inquiry.wait(5.0)
    assert [rig.tiers(mine, number) for number in (1, 2, 5)] == [[None], [None], ["disk"]]
    assert mine.statistics().tiers[2].num_blocks == 1
    mine.quarantine(rig.key(5))
    assert mine.flush(5.0)
    assert rig.key(5) not in rig.medium.frames


def test_the_quarantine_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absences, "_MAX_QUARANTINED", 2)
    store = rig.open()
    for number in range(3):
        store.quarantine(rig.key(number))
    assert store.statistics().num_quarantined == 2
    assert rig.put(store, 0) == 1
