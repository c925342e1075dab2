"""Tiers whose backend reads several blocks in one exchange."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.leases import Hit
from kvstore.loading import Ticket
from kvstore.seams import Transfer
from kvstore.store import TieredStore
from tests.eventually import eventually
from tests.kvstore.codecs import ZlibCodec
from tests.kvstore.conftest import BLOCK_BYTES, Rig, StreamDict


class Stream(StreamDict):
    """Lets an exchange begin, and each of its blocks arrive, when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held = False
        self.may_arrive = threading.Semaphore(0)
        self.fail = self._wait

    def let(self, num_steps: int) -> None:
        """Let the next ``num_steps`` beginnings and blocks happen."""
        self.may_arrive.release(num_steps)

    def _wait(self, operation: str, _key: bytes) -> None:
        if self.is_held and operation in {"exchange", "get"}:
            assert self.may_arrive.acquire(timeout=10.0)


@pytest.fixture
def stream(rig: Rig) -> Stream:
    rig.medium = stream = Stream()
    return stream


def stored(rig: Rig, *numbers: int, **options: object) -> TieredStore:
    """Return a store over a stream with one reader, just restarted; it has the blocks on its medium alone."""
    first = rig.open(host_blocks=0, staging_blocks=64, codec=options.get("codec"))  # type: ignore[arg-type]
    rig.put(first, *numbers)
    first.close()
    return rig.open(num_readers=1, **({"host_blocks": 0, "staging_blocks": 16} | options))  # type: ignore[arg-type]


def busy(rig: Rig, stream: Stream, store: TieredStore, *numbers: int) -> tuple[Hit, list[Ticket]]:
    """Load ``numbers``: the first one's exchange has begun and is held up, the others wait behind it."""
    stream.is_held = True
    stream.exchanges.clear()
    hit = store.lookup([rig.key(number) for number in numbers])
    tickets = [store.load(hit, 0, rig.now_s + 5)]
    eventually(lambda: len(stream.exchanges) == 1)
    tickets += [store.load(hit, index, rig.now_s + 5) for index in range(1, len(numbers))]
    return hit, tickets


def exchanged(rig: Rig, stream: Stream) -> list[list[int]]:
    return [[rig.number(key) for key in keys] for keys in list(stream.exchanges)]


def taken(rig: Rig, ticket: Ticket, number: int) -> bool:
    """Say whether the block arrived; its bytes must be the right ones."""
    assert ticket.wait(5.0)
    block = ticket.take()
    if block is None:
        return False
    assert block.data == rig.payload(number)
    block.release()
    return True


def test_loads_that_wait_go_in_one_exchange_and_end_one_by_one(rig: Rig, stream: Stream) -> None:
    store = stored(rig, 1, 2, 3, 4)
    hit, tickets = busy(rig, stream, store, 1, 2, 3, 4)
    for done in range(1, 5):
        stream.let(2 if done <= 2 else 1)  # the first two begin an exchange each
        assert taken(rig, tickets[done - 1], done)
        assert [ticket.done() for ticket in tickets[done:]] == [False] * (4 - done)
    assert exchanged(rig, stream) == [[1], [2, 3, 4]]
    hit.release()


def test_an_exchange_is_for_no_more_blocks_than_configured(rig: Rig, stream: Stream) -> None:
    store = stored(rig, *range(1, 8), max_batch=3)
    hit, tickets = busy(rig, stream, store, *range(1, 8))
    stream.let(20)
    assert all(taken(rig, ticket, number) for number, ticket in enumerate(tickets, 1))
    assert exchanged(rig, stream) == [[1], [2, 3, 4], [5, 6, 7]]
    hit.release()


def test_loads_that_nobody_wants_any_more_are_left_out(rig: Rig, stream: Stream) -> None:
    store = stored(rig, 1, 2, 3, 4)
    hit, tickets = busy(rig, stream, store, 1, 2, 3, 4)
    tickets[1].abandon()
    tickets[3].abandon()
    stream.let(20)
    assert taken(rig, tickets[0], 1)
    assert taken(rig, tickets[2], 3)
    eventually(lambda: rig.counts(store, "disk")["refused_loads"] == 2)
    assert exchanged(rig, stream) == [[1], [3]]
    hit.release()


def test_case_11_a_fault_in_the_middle_ends_what_has_not_arrived_and_counts_once(
    rig: Rig, stream: Stream
) -> None:
    store = stored(rig, 1, 2, 3, 4, 5)
    hit, tickets = busy(rig, stream, store, 1, 2, 3, 4, 5)
    wait = stream.fail

    def fail(operation: str, key: bytes) -> None:
        wait(operation, key)
        if (operation, key) == ("get", rig.key(4)):
            raise OSError("connection reset")

    stream.fail = fail
    stream.let(20)
    assert [taken(rig, ticket, number) for number, ticket in enumerate(tickets, 1)] == [
        True, True, True, False, False,
    ]  # fmt: skip
    counts = rig.counts(store, "disk")
    assert (counts["read_faults"], counts["loads"], counts["breaker_openings"]) == (1, 3, 0)
    hit.release()
    stream.is_held = False
    stream.fail = wait
    assert rig.get(store, 4), "it is still there"
    assert store.statistics().staging_bytes == 0


def test_a_stream_that_ends_early_is_a_fault(
    rig: Rig, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stored(rig, 1)
    monkeypatch.setattr(stream, "get_each", lambda _wants: iter(()))
    assert not rig.get(store, 1)
    assert rig.counts(store, "disk")["read_faults"] == 1


def test_a_stream_that_fails_at_once_and_again_is_left_out_for_a_while(rig: Rig, stream: Stream) -> None:
    store = stored(rig, 1)

    def fail(operation: str, _key: bytes) -> None:
        if operation == "exchange":
            raise OSError("connection refused")

    stream.fail = fail
    assert [rig.get(store, 1) for _ in range(4)] == [False] * 4
    counts = rig.counts(store, "disk")
    assert (counts["read_faults"], counts["breaker_openings"]) == (3, 1)
    stream.fail = lambda _operation, _key: None
    rig.now_s += 10
    assert rig.get(store, 1)


def test_missing_corrupt_and_unknown_blocks_of_an_exchange_concern_no_other(rig: Rig, stream: Stream) -> None:
    store = stored(rig, 1, 2, 3, 4, 5)
    hit, tickets = busy(rig, stream, store, 1, 2, 3, 4, 5)
    header, payload = stream.frames[rig.key(3)]
    stream.frames[rig.key(3)] = header, payload[:-1] + b"?"
    del stream.frames[rig.key(2)]
    header, payload = stream.frames[rig.key(4)]
    stream.frames[rig.key(4)] = header[:4] + b"\x09\x00" + header[6:], payload
    stream.let(20)
    assert [taken(rig, ticket, number) for number, ticket in enumerate(tickets, 1)] == [
        True, False, False, False, True,
    ]  # fmt: skip
    counts = rig.counts(store, "disk")
    assert [counts[name] for name in ("missing", "corrupt", "unknown_form", "read_faults")] == [1, 1, 1, 0]
    hit.release()


def test_a_batch_takes_the_staging_memory_there_is_and_never_waits_for_its_own(
    rig: Rig, stream: Stream
) -> None:
    store = stored(rig, *range(1, 10), staging_blocks=4)
    hit, tickets = busy(rig, stream, store, *range(1, 10))
    stream.let(40)
    for number, ticket in enumerate(tickets, 1):  # each is given back before the next is taken
        assert taken(rig, ticket, number)
    assert exchanged(rig, stream)[:2] == [[1], [2, 3, 4]]
    hit.release()


def test_case_18_loads_of_a_stream_that_were_queued_report_at_the_close(rig: Rig, stream: Stream) -> None:
    store = stored(rig, 1, 2, 3)
    hit, tickets = busy(rig, stream, store, 1, 2, 3)
    store.close(0.2)
    assert [ticket.done() for ticket in tickets] == [False, True, True]
    stream.let(20)
    assert taken(rig, tickets[0], 1)
    hit.release()
    assert store.num_holds == 0


def test_blocks_of_a_stream_are_decoded_and_promoted_as_they_arrive(rig: Rig, stream: Stream) -> None:
    store = stored(rig, 1, 2, 3, host_blocks=8, codec=ZlibCodec())
    hit, tickets = busy(rig, stream, store, 1, 2, 3)
    stream.let(20)
    assert all(taken(rig, ticket, number) for number, ticket in enumerate(tickets, 1))
    hit.release()
    assert rig.tiers(store, 1, 2, 3) == ["host"] * 3
    assert rig.counts(store, "host")["promotions"] == 3


@pytest.mark.parametrize("codec", [None, ZlibCodec()])
def test_each_transfer_is_told_with_its_sizes_and_from_when_it_was_queued(
    rig: Rig, stream: Stream, codec: ZlibCodec | None
) -> None:
    heard: list[Transfer] = []

    def hear(transfer: Transfer) -> None:
        heard.append(transfer)
        rig.now_s += 1

    store = stored(rig, 1, 2, 3, codec=codec, on_transfer=hear)
    hit, tickets = busy(rig, stream, store, 1, 2)
    rig.now_s += 3
    tickets.append(store.load(store.lookup([rig.key(3)]), 0, rig.now_s + 5))
    stream.let(20)
    for number, ticket in enumerate(tickets, 1):
        assert taken(rig, ticket, number)
    stored_bytes = [len(stream.frames[rig.key(number)][1]) for number in (1, 2, 3)]
    assert (stored_bytes == [BLOCK_BYTES] * 3) is (codec is None)
    assert heard == [
        Transfer("disk", 1000.0, 1003.0, stored_bytes[0], BLOCK_BYTES, 0.0),
        Transfer("disk", 1000.0, 1004.0, stored_bytes[1], BLOCK_BYTES, 0.0),
        Transfer("disk", 1003.0, 1005.0, stored_bytes[2], BLOCK_BYTES, 0.0),
    ]
    hit.release()


def test_the_time_that_decoding_took_is_part_of_what_is_told(rig: Rig) -> None:
    class Slow(ZlibCodec):
        def decode(self, stored: memoryview, out: memoryview) -> None:
            rig.now_s += 0.25
            super().decode(stored, out)

    heard: list[Transfer] = []
    rig.put(rig.open(codec=Slow()), 1)
    rig.stores[0].close()
    store = rig.open(codec=Slow(), on_transfer=heard.append)
    assert rig.get(store, 1)
    assert rig.get(store, 1), "from memory, which is no transfer"
    assert [(transfer.arrived_s - transfer.asked_s, transfer.decode_s) for transfer in heard] == [
        (0.25, 0.25)
    ]


def test_whoever_hears_of_transfers_cannot_break_them(rig: Rig) -> None:
    def hear(_transfer: Transfer) -> None:
        raise RuntimeError("not listening")

    rig.put(rig.open(), 1)
    rig.stores[0].close()
    store = rig.open(on_transfer=hear)
    assert rig.get(store, 1)
    assert store.health().tiers["disk"].reason == ""


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_whatever_happens_in_exchanges_every_load_ends_and_nothing_stays(data: st.DataObject) -> None:
    rig = Rig()
    rig.medium = medium = StreamDict()
    codec = data.draw(st.sampled_from([None, ZlibCodec()]))
    numbers = list(range(1, 13))
    store = stored(
        rig, *numbers, codec=codec, max_batch=data.draw(st.integers(1, 5)), staging_blocks=12,
        host_blocks=data.draw(st.sampled_from([0, 4])),
    )  # fmt: skip
    faulty = data.draw(st.sets(st.sampled_from(numbers), max_size=4))
    gone = data.draw(st.sets(st.sampled_from(numbers), max_size=4))
    unwanted = data.draw(st.sets(st.sampled_from(numbers), max_size=4))
    medium.fail = failing_for(rig, faulty)
    for number in gone:
        medium.frames.pop(rig.key(number))
    hit = store.lookup([rig.key(number) for number in numbers])
    tickets = {number: store.load(hit, number - 1, rig.now_s + 5) for number in numbers}
    for number in unwanted:
        tickets.pop(number).abandon()
    for number, ticket in tickets.items():
        arrived = taken(rig, ticket, number)
        assert not (arrived and number in faulty | gone)
    hit.release()
    store.close(2.0)
    store.check()
    assert store.num_holds == 0
    assert store.statistics().staging_bytes == 0


def failing_for(rig: Rig, numbers: set[int]) -> Callable[[str, bytes], None]:
    def fail(operation: str, key: bytes) -> None:
        if operation == "get" and rig.number(key) in numbers:
            raise OSError("connection reset")

    return fail


def test_loads_that_wait_for_memory_are_not_overtaken_by_those_behind_them(rig: Rig, stream: Stream) -> None:
    numbers = range(1, 61)
    first = rig.open(host_blocks=0, disk_blocks=64, staging_blocks=64)
    rig.put(first, *numbers)
    first.close()
    store = rig.open(host_blocks=0, disk_blocks=64, staging_blocks=8, num_readers=4, max_batch=4)
    hit = store.lookup([rig.key(number) for number in numbers])
    tickets = [store.load(hit, index, rig.now_s + 5) for index in range(len(numbers))]
    for ticket in tickets:
        assert ticket.wait(10.0)
        block = ticket.take()
        assert block is not None
        block.release()
    hit.release()
