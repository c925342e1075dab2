"""Asking a medium that is shared: what others stored there is found, and nothing of theirs is deleted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from kvstore.errors import BackendError, StoreClosedError
from kvstore.frame import Header
from kvstore.inquiry import Inquiry
from kvstore.statistics import State
from kvstore.store import TieredStore
from tests.eventually import eventually
from tests.kvstore.conftest import Rig, SharedDict
from tests.kvstore.faults import raising, waiting


@pytest.fixture
def pair(rig: Rig) -> tuple[Rig, TieredStore, TieredStore]:
    """Return two stores, as of two processes, on one medium."""
    rig.medium = SharedDict()
    return rig, rig.open(), rig.open()


Pair = tuple[Rig, TieredStore, TieredStore]


def ask(rig: Rig, store: TieredStore, *numbers: int) -> Inquiry | None:
    """Inquire and wait for the answer, and for what it left to be done behind."""
    inquiry = store.inquire([rig.key(number) for number in numbers], rig.now_s + 1.0)
    assert inquiry is None or inquiry.wait(5.0)
    assert store.flush(5.0)
    return inquiry


def rewrite(rig: Rig, number: int, change: Callable[[Header], Header]) -> None:
    header, payload = rig.medium.frames[rig.key(number)]
    rig.medium.frames[rig.key(number)] = change(Header.unpack(header)).pack(), payload


def test_what_another_process_stored_is_found_and_loaded(pair: Pair) -> None:
    rig, mine, theirs = pair
    rig.put(theirs, 1, 2)
    assert rig.tiers(mine, 1, 2, 3) == [None, None, None]
    assert ask(rig, mine, 1, 2, 3) is not None
    assert rig.tiers(mine, 1, 2, 3) == ["disk", "disk", None]
    assert rig.get(mine, 2)
    counts = rig.counts(mine, "disk")
    assert (counts["inquiries"], counts["found_blocks"], counts["missing"]) == (1, 2, 0)


def test_a_medium_that_is_not_there_is_told_from_the_start_and_is_found_again_by_looking(rig: Rig) -> None:
    rig.medium = SharedDict(fail=raising("resident", BackendError("disk", "resident", "nobody is there")))
    store = rig.open()

    health = store.health().tiers["disk"]
    assert (health.state, health.reason) == (
        State.DEGRADED,
        "reads paused: disk: resident failed: nobody is there",
    )
    ask(rig, store, 1)
    assert rig.counts(store, "disk")["refused_inquiries"] == 1, "requests do not wait for it"

    rig.medium.fail = lambda _operation, _key: None
    assert store.health().state is State.DEGRADED, "it was tried a moment ago"
    rig.now_s += 5.0
    eventually(lambda: store.health().state is State.OK)
    ask(rig, store, 1)
    assert rig.counts(store, "disk")["inquiries"] == 1


def test_looking_at_the_health_of_a_medium_that_is_gone_asks_it_now_and_then(rig: Rig) -> None:
    asked: list[str] = []

    def gone(operation: str, _key: bytes) -> None:
        asked.append(operation)
        raise BackendError("disk", operation, "nobody is there")

    rig.medium = SharedDict(fail=gone)
    store = rig.open()
    for _ in range(20):
        assert store.health().state is State.DEGRADED
    assert asked == ["resident"]
    rig.now_s += 5.0
    for _ in range(20):
        assert store.health().state is State.DEGRADED
    eventually(lambda: rig.counts(store, "disk")["read_faults"] == 2)
    assert asked == ["resident"] * 2


def test_what_a_faster_tier_has_is_not_asked_for(pair: Pair) -> None:
    rig, mine, _ = pair
    rig.put(mine, 1)
    mine.device_added(rig.key(2), b"")
    asked: list[int] = []
    rig.medium.fail = lambda operation, _key: asked.append(1) if operation == "resident" else None
    assert ask(rig, mine, 1, 2) is None
    assert asked == []


def test_a_store_without_a_shared_medium_has_nobody_to_ask(rig: Rig) -> None:
    assert rig.open().inquire([rig.key(1)], rig.now_s + 1.0) is None


def test_a_found_block_ends_when_its_header_says(pair: Pair) -> None:
    rig, mine, theirs = pair
    rig.put(theirs, 1, ttl_s=10.0)
    rig.put(theirs, 2, ttl_s=100.0)
    ask(rig, mine, 2)
    assert mine.peek([rig.key(2)]) == ("disk",)
    rig.now_s += 50.0
    ask(rig, mine, 1)
    assert mine.peek([rig.key(1)]) == (None,)
    assert rig.counts(mine, "disk")["found_blocks"] == 1, "what has ended is not entered"
    rig.now_s += 50.0
    assert mine.peek([rig.key(2)]) == (None,)


def test_a_block_in_a_form_that_is_not_known_here_is_not_entered_and_stays(pair: Pair) -> None:
    rig, mine, theirs = pair
    rig.put(theirs, 1)
    rewrite(rig, 1, lambda header: replace(header, codec=77))
    ask(rig, mine, 1)
    assert mine.peek([rig.key(1)]) == (None,)
    assert rig.key(1) in rig.medium.frames


def test_what_was_believed_to_be_there_and_is_denied_is_dropped_and_counted(pair: Pair) -> None:
    rig, mine, theirs = pair
    rig.put(theirs, 1)
    ask(rig, mine, 1)
    del rig.medium.frames[rig.key(1)]
    hit = mine.lookup([rig.key(1)])
    ask(rig, mine, 1)
    assert rig.tiers(mine, 1) == [None]
    assert rig.counts(mine, "disk")["missing"] == 1
    ticket = mine.load(hit, 0, rig.now_s + 1.0)
    assert ticket.wait(5.0)
    assert ticket.take() is None
    hit.release()


def test_a_block_that_was_overwritten_in_an_unknown_form_is_dropped_and_left_alone(pair: Pair) -> None:
    rig, mine, _ = pair
    rig.put(mine, 1)
    mine.clear("host")
    rewrite(rig, 1, lambda header: replace(header, codec=77))
    ask(rig, mine, 1)
    assert mine.peek([rig.key(1)]) == (None,)
    assert rig.key(1) in rig.medium.frames
    rewrite(rig, 1, lambda header: replace(header, codec=0))
    ask(rig, mine, 1)
    assert rig.get(mine, 1)


@contextmanager
def being_asked(rig: Rig, store: TieredStore, number: int) -> Iterator[None]:
    """Within, the medium has decided what to answer, and has not answered yet."""
    asked, may_answer = threading.Event(), threading.Event()
    resident = SharedDict.resident

    def answer_late(keys: list[bytes]) -> object:
        answer = resident(rig.medium, keys)  # type: ignore[arg-type]
        asked.set()
        assert may_answer.wait(5.0)
        return answer

    rig.medium.resident = answer_late  # type: ignore[attr-defined]
    inquiry = store.inquire([rig.key(number)], rig.now_s + 1.0)
    assert inquiry is not None
    assert asked.wait(5.0)
    yield
    may_answer.set()
    assert inquiry.wait(5.0)


def test_a_block_that_is_stored_while_the_medium_answers_is_not_denied(pair: Pair) -> None:
    rig, mine, _ = pair
    with being_asked(rig, mine, 1):
        rig.put(mine, 1)
    mine.clear("host")
    assert rig.tiers(mine, 1) == ["disk"]


def test_a_block_that_is_removed_while_the_medium_answers_is_not_found(pair: Pair) -> None:
    rig, mine, _ = pair
    rig.put(mine, 1)
    mine.clear("host")
    with being_asked(rig, mine, 1):
        mine.evict([rig.key(1)])
        assert mine.flush(5.0)
        assert rig.key(1) not in rig.medium.frames
    assert rig.tiers(mine, 1) == [None]


def test_a_block_whose_removal_has_begun_when_the_medium_is_asked_is_not_found(pair: Pair) -> None:
    rig, mine, _ = pair
    rig.put(mine, 1)
    mine.clear("host")
    may_delete = threading.Event()
    rig.medium.fail = waiting("delete", may_delete)
    mine.evict([rig.key(1)])
    with being_asked(rig, mine, 1):
        may_delete.set()
        assert mine.flush(5.0)
    assert rig.tiers(mine, 1) == [None]


def test_for_room_others_blocks_leave_the_books_and_stay_on_the_medium(rig: Rig) -> None:
    rig.medium = SharedDict()
    theirs, mine = rig.open(), rig.open(host_blocks=0, disk_blocks=2)
    for number in range(1, 4):
        rig.put(theirs, number)
        ask(rig, mine, number)
    assert mine.peek([rig.key(number) for number in (1, 2, 3)]) == (None, "disk", "disk")
    rig.put(mine, 4)
    assert mine.peek([rig.key(number) for number in (2, 3, 4)]) == (None, "disk", "disk")
    assert rig.medium.frames.keys() == {rig.key(number) for number in (1, 2, 3, 4)}


def test_our_own_blocks_make_way_behind_for_what_was_found(rig: Rig) -> None:
    rig.medium = SharedDict()
    theirs, mine = rig.open(), rig.open(host_blocks=0, disk_blocks=2)
    rig.put(theirs, 1)
    rig.put(mine, 2)
    rig.put(mine, 3)
    ask(rig, mine, 1)
    assert mine.peek([rig.key(number) for number in (1, 2, 3)]) == ("disk", None, "disk")
    assert rig.medium.frames.keys() == {rig.key(1), rig.key(3)}, "ours is deleted, the oldest first"
    rig.put(mine, 4)
    rig.put(mine, 5)
    assert mine.peek([rig.key(number) for number in (1, 4, 5)]) == (None, "disk", "disk")
    assert rig.medium.frames.keys() == {rig.key(1), rig.key(4), rig.key(5)}, "theirs is not"


def test_what_is_found_and_finds_no_room_is_not_entered(rig: Rig) -> None:
    rig.medium = SharedDict()
    theirs, mine = rig.open(), rig.open(host_blocks=0, disk_blocks=1)
    rig.put(theirs, 1)
    rig.put(mine, 2)
    hit = mine.lookup([rig.key(2)])
    ask(rig, mine, 1)
    assert mine.peek([rig.key(1), rig.key(2)]) == (None, "disk")
    hit.release()


def test_what_the_medium_of_others_lost_is_forgotten_and_not_deleted(pair: Pair) -> None:
    rig, mine, theirs = pair
    rig.put(theirs, 1)
    ask(rig, mine, 1)
    deleted: list[bytes] = []
    rig.medium.fail = lambda operation, key: deleted.append(key) if operation == "delete" else None
    frame = rig.medium.frames.pop(rig.key(1))
    assert not rig.get(mine, 1)
    rig.medium.frames[rig.key(1)] = frame
    assert mine.flush(5.0)
    assert (rig.counts(mine, "disk")["missing"], deleted) == (1, [])


def test_what_has_ended_leaves_the_books_and_the_medium_is_left_alone(pair: Pair) -> None:
    rig, mine, theirs = pair
    rig.put(mine, 1, ttl_s=10.0)
    mine.clear("host")
    rig.now_s += 20.0
    rig.put(theirs, 1, ttl_s=10.0)
    mine.lookup([])
    assert mine.flush(5.0)
    assert rig.key(1) in rig.medium.frames, "another process has stored it again"
    assert rig.counts(mine, "disk")["expirations"] == 1
    ask(rig, mine, 1)
    assert rig.get(mine, 1)


def test_a_bad_block_of_others_is_deleted(pair: Pair) -> None:
    rig, mine, theirs = pair
    rig.put(theirs, 1)
    header, payload = rig.medium.frames[rig.key(1)]
    rig.medium.frames[rig.key(1)] = header, bytes([payload[0] ^ 1]) + payload[1:]
    ask(rig, mine, 1)
    assert not rig.get(mine, 1)
    assert mine.flush(5.0)
    assert rig.key(1) not in rig.medium.frames


def test_whoever_asked_is_told_once_on_a_transfer_thread(pair: Pair) -> None:
    rig, mine, theirs = pair
    rig.put(theirs, 1)
    told: list[str] = []
    done = threading.Event()

    def on_done() -> None:
        told.append(threading.current_thread().name)
        done.set()

    inquiry = mine.inquire([rig.key(1)], rig.now_s + 1.0, on_done)
    assert inquiry is not None
    assert done.wait(5.0)
    assert inquiry.done()
    assert told == ["disk-read"]


def test_an_inquiry_that_fails_is_done_counted_and_told_to_the_breaker(pair: Pair) -> None:
    rig, mine, _ = pair
    rig.medium.fail = raising("resident", BackendError("disk", "resident", "connection reset"))
    for _ in range(3):
        assert ask(rig, mine, 1) is not None
    counts = rig.counts(mine, "disk")
    assert (counts["read_faults"], counts["inquiries"]) == (3, 0)
    assert mine.health().tiers["disk"].reason == "reads paused: disk: resident failed: connection reset"
    refused = mine.inquire([rig.key(1)], rig.now_s + 1.0)
    assert refused is not None
    assert refused.done()
    assert rig.counts(mine, "disk")["refused_inquiries"] == 1


def test_an_answer_of_the_wrong_length_is_a_fault(pair: Pair) -> None:
    rig, mine, _ = pair
    rig.medium.resident = lambda _keys: []  # type: ignore[attr-defined]
    ask(rig, mine, 1)
    assert rig.counts(mine, "disk")["read_faults"] == 1


def test_an_inquiry_given_up_after_its_deadline_is_a_fault_and_its_answer_is_still_entered(
    pair: Pair,
) -> None:
    rig, mine, theirs = pair
    rig.put(theirs, 1)
    may_answer = threading.Event()
    rig.medium.fail = waiting("resident", may_answer)
    told: list[bool] = []
    inquiry = mine.inquire([rig.key(1)], rig.now_s + 1.0, lambda: told.append(True))
    assert inquiry is not None
    assert not inquiry.wait(0.01)
    rig.now_s += 1.0
    inquiry.abandon()
    inquiry.abandon()
    assert rig.counts(mine, "disk")["late_inquiries"] == 1
    may_answer.set()
    assert inquiry.wait(5.0)
    assert (told, rig.tiers(mine, 1)) == ([], ["disk"])


def test_an_inquiry_given_up_in_time_is_no_fault(pair: Pair) -> None:
    rig, mine, _ = pair
    may_answer = threading.Event()
    rig.medium.fail = waiting("resident", may_answer)
    inquiry = mine.inquire([rig.key(1)], rig.now_s + 1.0)
    assert inquiry is not None
    inquiry.abandon()
    may_answer.set()
    assert inquiry.wait(5.0)
    assert rig.counts(mine, "disk")["late_inquiries"] == 0
    assert mine.health().state is State.OK


def test_a_full_queue_gives_an_inquiry_that_is_done(rig: Rig) -> None:
    rig.medium = SharedDict()
    store = rig.open(max_queued_reads=1)
    may_answer, is_asked = threading.Event(), threading.Semaphore(0)

    def wait(operation: str, _key: bytes) -> None:
        if operation == "resident":
            is_asked.release()
            assert may_answer.wait(5.0)

    rig.medium.fail = wait
    busy = []
    for _ in range(2):
        busy.append(store.inquire([rig.key(1)], rig.now_s + 1.0))
        assert is_asked.acquire(timeout=5.0)
    busy.append(store.inquire([rig.key(1)], rig.now_s + 1.0))
    refused = store.inquire([rig.key(1)], rig.now_s + 1.0)
    assert refused is not None
    assert refused.done()
    may_answer.set()
    assert all(inquiry is not None and inquiry.wait(5.0) for inquiry in busy)


def test_case_18_inquiries_are_done_when_the_store_closes(pair: Pair) -> None:
    rig, mine, _ = pair
    may_answer = threading.Event()
    rig.medium.fail = waiting("resident", may_answer)
    inquiries = [mine.inquire([rig.key(1)], rig.now_s + 1.0) for _ in range(6)]
    mine.close(0.5)
    may_answer.set()
    assert all(inquiry is not None and inquiry.wait(5.0) for inquiry in inquiries)
    with pytest.raises(StoreClosedError):
        mine.inquire([rig.key(1)], rig.now_s + 1.0)
