"""Faults of media end in the store: a miss, a count, a word in health; never an exception, never a leak."""

from __future__ import annotations

import threading
import time

import pytest

from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.errors import BackendError, OutOfSpaceError
from kvstore.statistics import State
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import Tier, TierConfig, TierSpec, WriteMode
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU
from tests.eventually import eventually
from tests.kvstore.conftest import BLOCK_BYTES, DictBackend, Rig
from tests.kvstore.faults import hanging, raising, stored_on_disk, waiting


def test_case_6_a_flipped_byte_is_a_counted_miss_and_the_block_is_dropped(rig: Rig) -> None:
    store = stored_on_disk(rig, 1, 2)
    header, payload = rig.medium.frames[rig.key(1)]
    rig.medium.frames[rig.key(1)] = header, bytes([payload[0] ^ 1]) + payload[1:]
    assert not rig.get(store, 1)
    assert rig.get(store, 2)
    assert rig.counts(store, "disk")["corrupt"] == 1
    store.flush(5.0)
    assert rig.key(1) not in rig.medium.frames
    assert rig.tiers(store, 1) == [None]


def test_what_the_audit_drops_from_our_own_memory_is_read_from_the_disk(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(audit_share=1.0))
    rig.put(store, 1)
    hit = store.lookup([rig.key(1)])
    block = store.load(hit, 0, rig.now_s + 5).take()
    assert block is not None
    block.data[7] ^= 1
    block.release()
    hit.release()
    assert rig.get(store, 1)
    assert (rig.counts(store, "host")["corrupt"], rig.counts(store, "disk")["loads"]) == (1, 1)


def test_case_17_a_transfer_that_breaks_off_is_told_in_health(rig: Rig) -> None:
    def slip() -> None:
        raise RuntimeError("a slip")

    spec = TierSpec(TierConfig("disk", 1), rig.medium, LeafFirstLRU(), whole_blocks_that_fit)
    tier = Tier(spec, 1, Clock())
    assert tier.pool.write(slip)
    assert tier.pool.flush(5.0)
    health = tier.health(0)
    assert tier.pool.close(5.0)
    assert health.state is State.DEGRADED
    assert health.reason == "transfers broken off by a fault of the code: 1"


def test_a_medium_that_is_closed_while_writes_are_paused_is_not_said_to_take_them_again(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.medium.fail = raising("put", BackendError("disk", "put", "gone"))
    store = rig.open(host_blocks=0)
    for number in range(1, 9):
        rig.put(store, number)
    assert store.flush(5.0)
    assert "writes paused" in store.health().tiers["disk"].reason
    store.close()
    assert not any("go on" in message for message in caplog.messages)


def test_case_6_a_block_cut_short_is_a_counted_miss(rig: Rig) -> None:
    store = stored_on_disk(rig, 1)
    header, payload = rig.medium.frames[rig.key(1)]
    rig.medium.frames[rig.key(1)] = header, payload[:-1]
    assert not rig.get(store, 1)
    assert rig.counts(store, "disk")["corrupt"] == 1


def test_case_6_a_value_swapped_with_another_keys_is_a_counted_miss(rig: Rig) -> None:
    store = stored_on_disk(rig, 1, 2)
    frames = rig.medium.frames
    frames[rig.key(1)], frames[rig.key(2)] = frames[rig.key(2)], frames[rig.key(1)]
    assert not rig.get(store, 1)
    assert not rig.get(store, 2)
    assert rig.counts(store, "disk")["corrupt"] == 2


def test_a_flipped_byte_in_our_own_memory_is_found_where_the_audit_looks(rig: Rig) -> None:
    store = rig.open(disk_blocks=0, config=StoreConfig(audit_share=1.0))
    reservation = store.reserve(rig.namespace, rig.key(1), b"", 4096)
    assert reservation is not None
    reservation.view[:] = rig.payload(1)
    view = reservation.view
    reservation.commit()
    view[100] ^= 1
    assert not rig.get(store, 1)
    assert rig.counts(store, "host")["corrupt"] == 1
    assert rig.tiers(store, 1) == [None], "what is bad has gone"


def test_a_bad_block_computed_again_while_its_lease_is_out_is_good(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(audit_share=1.0))
    rig.put(store, 1)
    store.clear("host")
    header, payload = rig.medium.frames[rig.key(1)]
    rig.medium.frames[rig.key(1)] = header, bytes([payload[0] ^ 1]) + payload[1:]
    hit = store.lookup([rig.key(1)])
    assert not rig.get(store, 1)
    assert store.flush(5.0)

    # Another batch computes other last bits.
    again = memoryview(bytes([9]) * len(payload))
    assert store.put(rig.namespace, rig.key(1), b"", again)
    assert store.flush(5.0)
    hit.release()

    for tier in ("host", "disk"):
        out = bytearray(len(payload))
        assert rig.tiers(store, 1) == [tier]
        assert store.get_into(rig.key(1), memoryview(out))
        assert out == again
        store.clear("host")
    assert (rig.counts(store, "host")["corrupt"], rig.counts(store, "disk")["corrupt"]) == (0, 1)


def test_a_block_stored_again_while_its_older_copy_is_written_back_keeps_its_own_checksum(rig: Rig) -> None:
    store = rig.open(host_blocks=1, write_mode=WriteMode.BACK, config=StoreConfig(audit_share=1.0))
    store.device_added(rig.key(1), b"")
    may_write = threading.Event()
    rig.medium.fail = waiting("put", may_write)
    rig.put(store, 1, flush=False)
    rig.put(store, 2, flush=False)
    again = memoryview(bytes([9]) * 4096)
    assert store.put(rig.namespace, rig.key(1), b"", again)
    may_write.set()
    assert store.flush(5.0)

    out = bytearray(4096)
    assert store.get_into(rig.key(1), memoryview(out))
    assert out == again
    store.clear("host")
    assert rig.get(store, 1), "the disk has the older copy, with its own checksum"
    assert (rig.counts(store, "host")["corrupt"], rig.counts(store, "disk")["corrupt"]) == (0, 0)


def test_a_bad_block_in_our_own_memory_is_dropped_by_the_load_that_finds_it(rig: Rig) -> None:
    store = rig.open(disk_blocks=0, config=StoreConfig(audit_share=1.0))
    rig.put(store, 1)
    hit = store.lookup([rig.key(1)])
    block = store.load(hit, 0, rig.now_s + 5).take()
    assert block is not None
    block.data[7] ^= 1
    block.release()
    assert store.load(hit, 0, rig.now_s + 5).take() is None
    assert store.load(hit, 0, rig.now_s + 5).take() is None
    assert rig.counts(store, "host")["corrupt"] == 1, "one failed load, then it is gone"
    hit.release()
    assert rig.put(store, 1) == 1
    assert rig.get(store, 1)


def test_what_the_audit_drops_stays_whole_for_those_who_have_it(rig: Rig) -> None:
    store = rig.open(host_blocks=1, disk_blocks=0, config=StoreConfig(audit_share=1.0))
    rig.put(store, 1)
    hit = store.lookup([rig.key(1)])
    block = store.load(hit, 0, rig.now_s + 5).take()
    assert block is not None
    block.data[7] ^= 1
    assert not rig.get(store, 1)
    block.data[7] ^= 1
    assert rig.put(store, 2) == 1
    assert block.data == rig.payload(1)
    block.release()
    hit.release()
    assert store.statistics().staging_bytes == 0


def test_case_10_a_block_gone_between_lookup_and_load_is_a_miss(rig: Rig) -> None:
    store = stored_on_disk(rig, 1)
    hit = store.lookup([rig.key(1)])
    rig.medium.frames.clear()
    ticket = store.load(hit, 0, rig.now_s + 5)
    assert ticket.wait(5.0)
    assert ticket.take() is None
    hit.release()
    store.check()


def test_case_11_a_backend_that_raises_once_is_counted_and_used_again(rig: Rig) -> None:
    store = stored_on_disk(rig, 1, 2)
    rig.medium.fail = raising("get", BackendError("disk", "get", "input/output error"))
    assert not rig.get(store, 1)
    rig.medium.fail = lambda _operation, _key: None
    assert rig.get(store, 1), "a fault is not a verdict on the block"
    assert rig.get(store, 2)
    assert rig.put(store, 3) == 1
    assert rig.counts(store, "disk")["read_faults"] == 1
    assert store.statistics().staging_bytes == 0


def test_any_exception_of_a_plugin_is_a_fault_like_another(rig: Rig) -> None:
    store = rig.open()
    rig.medium.fail = raising("put", KeyError("not a BackendError"))
    rig.put(store, 1)
    assert rig.counts(store, "disk")["write_faults"] == 1
    assert rig.tiers(store, 1) == ["host"]
    assert store.statistics().tiers[2].used_bytes == 0, "the room set aside for it is given back"


def test_the_breaker_opens_leaves_the_tier_alone_and_tries_again(rig: Rig) -> None:
    store = stored_on_disk(rig, 1)
    rig.medium.fail = raising("get", BackendError("disk", "get", "input/output error"))
    for _ in range(3):
        assert not rig.get(store, 1)
    assert rig.tiers(store, 1) == [None], "lookups no longer count on the tier"
    assert (rig.counts(store, "disk")["read_faults"], rig.counts(store, "disk")["breaker_openings"]) == (3, 1)
    health = store.health()
    assert health.state is State.DEGRADED
    assert health.tiers["disk"].reason == "reads paused: disk: get failed: input/output error"
    rig.medium.fail = lambda _operation, _key: None
    rig.now_s += 5.0
    assert rig.get(store, 1)
    assert store.health().state is State.OK


def test_faults_that_do_not_come_in_a_row_leave_the_breaker_closed(rig: Rig) -> None:
    store = stored_on_disk(rig, 1, 2, 3)
    for number in (1, 2, 3):
        rig.medium.fail = raising("get", BackendError("disk", "get", "input/output error"))
        assert not rig.get(store, number)
        rig.medium.fail = lambda _operation, _key: None
        assert rig.get(store, number)
    assert store.health().state is State.OK
    assert rig.counts(store, "disk")["breaker_openings"] == 0


def test_a_read_that_is_not_answered_in_time_is_a_miss_and_holds_nothing_afterwards(rig: Rig) -> None:
    store = stored_on_disk(rig, 1)
    may_answer = threading.Event()
    rig.medium.fail = waiting("get", may_answer)
    assert not store.get_into(rig.key(1), memoryview(bytearray(4096)), timeout_s=0.05)
    may_answer.set()
    eventually(lambda: store.num_holds == 0)
    assert rig.get(store, 1)


def test_case_15_a_full_disk_keeps_serving_and_says_so_in_health(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    rig.medium.fail = raising("put", OutOfSpaceError("disk", "put", "no space left on device"))
    for number in (2, 3, 4, 5, 6):
        rig.put(store, number)
    assert all(rig.get(store, number) for number in range(1, 7))
    assert "no space left on device" in store.health().tiers["disk"].reason
    assert rig.counts(store, "disk")["write_faults"] == 3, "then writes pause"
    assert rig.counts(store, "disk")["dropped_stores"] == 2


def test_case_15_one_block_that_cannot_be_removed_stops_nothing(rig: Rig) -> None:
    store = rig.open(host_blocks=0, disk_blocks=2)
    rig.put(store, 1)
    rig.put(store, 2)

    def refuse_to_delete_1(operation: str, key: bytes) -> None:
        if (operation, key) == ("delete", rig.key(1)):
            raise BackendError("disk", "delete", "operation not permitted")

    rig.medium.fail = refuse_to_delete_1
    for number in (3, 4, 5):
        rig.put(store, number)
        assert len(rig.medium.frames) == 2, "the budget holds"
    assert rig.get(store, 5)
    assert not rig.get(store, 1)
    reason = store.health().tiers["disk"].reason
    assert reason == "1 blocks cannot be removed: disk: delete failed: operation not permitted"
    rig.medium.fail = lambda _operation, _key: None
    rig.put(store, 6)
    assert set(rig.medium.frames) == {rig.key(5), rig.key(6)}
    assert store.health().state is State.OK


def test_a_medium_that_deletes_nothing_pauses_writes(rig: Rig) -> None:
    store = rig.open(host_blocks=0, disk_blocks=8)
    for number in range(8):
        rig.put(store, number)
    rig.medium.fail = raising("delete", BackendError("disk", "delete", "read-only file system"))
    for number in range(8, 30):
        rig.put(store, number)
    assert sum(rig.get(store, number) for number in range(8)) >= 5, "what is there stays useful"
    assert "read-only file system" in store.health().tiers["disk"].reason


def test_case_14_a_load_that_never_answers_is_given_up_at_its_deadline(rig: Rig) -> None:
    store = stored_on_disk(rig, 1)
    may_answer = threading.Event()
    rig.medium.fail = waiting("get", may_answer)
    hit = store.lookup([rig.key(1)])
    ticket = store.load(hit, 0, rig.now_s + 0.1)
    assert not ticket.wait(0.05)
    rig.now_s += 0.2
    ticket.abandon()
    ticket.abandon()
    hit.release()
    assert rig.counts(store, "disk")["late_loads"] == 1
    assert store.statistics().staging_bytes == 4096, "the slot stays reserved until the transfer has reported"
    may_answer.set()
    eventually(lambda: store.statistics().staging_bytes == 0)
    assert store.num_holds == 0


def test_a_load_that_is_cancelled_in_time_is_no_fault(rig: Rig) -> None:
    store = stored_on_disk(rig, 1)
    may_answer = threading.Event()
    rig.medium.fail = waiting("get", may_answer)
    hit = store.lookup([rig.key(1)])
    store.load(hit, 0, rig.now_s + 5).abandon()
    hit.release()
    may_answer.set()
    eventually(lambda: store.num_holds == 0)
    assert rig.counts(store, "disk")["late_loads"] == 0


def test_a_full_read_queue_refuses_a_load_at_once_and_what_nobody_wants_is_not_read(rig: Rig) -> None:
    rig.put(rig.open(), 1, 2, 3, 4)
    rig.stores[0].close()
    store = rig.open(max_queued_reads=1)
    may_answer = threading.Event()
    reads: list[bytes] = []
    rig.medium.fail = waiting("get", may_answer, reads)
    hit = store.lookup([rig.key(number) for number in (1, 2, 3, 4)])
    tickets = []
    for index in range(2):
        tickets.append(store.load(hit, index, rig.now_s + 5))
        eventually(lambda: len(reads) == len(tickets))
    queued, refused = (store.load(hit, index, rig.now_s + 5) for index in (2, 3))

    assert refused.done()
    assert refused.take() is None
    assert not queued.done()
    assert rig.counts(store, "disk")["refused_loads"] == 1
    queued.abandon()
    may_answer.set()
    for ticket in tickets:
        assert ticket.wait(5.0)
        block = ticket.take()
        assert block is not None
        block.release()
    hit.release()
    eventually(lambda: store.num_holds == 0)
    assert reads == [rig.key(1), rig.key(2)]
    assert rig.counts(store, "disk")["refused_loads"] == 2


def test_one_block_wanted_by_many_is_read_once(rig: Rig) -> None:
    store = stored_on_disk(rig, 1)
    may_answer = threading.Event()
    reads: list[bytes] = []
    rig.medium.fail = waiting("get", may_answer, reads)
    hits = [store.lookup([rig.key(1)]) for _ in range(5)]
    called = threading.Semaphore(0)
    tickets = [store.load(hit, 0, rig.now_s + 5, called.release) for hit in hits]
    may_answer.set()
    for _ in tickets:
        assert called.acquire(timeout=5.0)
    assert len(reads) == 1
    for ticket, hit in zip(tickets, hits, strict=True):
        block = ticket.take()
        assert block is not None
        assert block.data == rig.payload(1)
        block.release()
        hit.release()


def test_case_16_a_host_tier_full_of_other_sizes_makes_room_on_demand(rig: Rig) -> None:
    store = rig.open(host_blocks=16, disk_blocks=0)
    for number in range(40):
        small = memoryview(bytes(5000))
        store.put(rig.namespace, rig.key(1000 + number), b"", small)
    assert rig.put(store, 1, 2, 3) == 3
    assert rig.tiers(store, 1, 2, 3) == ["host"] * 3


def test_case_16_a_machine_with_less_memory_than_the_budget_drops_stores_and_no_room(rig: Rig) -> None:
    store = rig.open(host_blocks=4, staging_blocks=-2, disk_blocks=0)
    rig.put(store, 1, 2)
    hit = store.lookup([rig.key(1), rig.key(2)])
    assert rig.put(store, 3) == 0
    assert store.statistics().tiers[1].used_bytes == 2 * 4096
    assert rig.counts(store, "host")["dropped_stores"] == 1
    hit.release()
    assert rig.put(store, 3) == 1


def test_case_16_a_load_finds_room_to_land_in_a_full_host_tier(rig: Rig) -> None:
    rig.put(rig.open(), 1)
    rig.stores[0].close()
    store = rig.open(host_blocks=4, staging_blocks=0)
    rig.put(store, 2, 3, 4, 5)
    assert rig.tiers(store, 1, 2, 3, 4, 5) == ["disk", "host", "host", "host", "host"]
    assert rig.get(store, 1)
    assert rig.tiers(store, 1) == ["host"]
    assert rig.counts(store, "host")["evictions"] == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_case_17_a_dead_transfer_thread_is_told_by_health(rig: Rig) -> None:
    store = rig.open()
    rig.medium.fail = raising("put", SystemExit())
    rig.put(store, 1, flush=False)
    eventually(lambda: store.health().state is State.UNHEALTHY)
    assert store.health().tiers["disk"].reason == "a transfer thread has died: restart the server"
    assert rig.get(store, 1), "what lies in memory is served"


def test_case_18_close_returns_in_time_with_a_backend_that_hangs(rig: Rig) -> None:
    store = rig.open()
    may_end = threading.Event()
    rig.medium.fail = waiting("put", may_end)
    rig.put(store, 1, 2, 3, flush=False)
    began_s = time.monotonic()
    store.close(0.5)
    assert time.monotonic() - began_s < 1.0
    may_end.set()
    eventually(lambda: store.num_holds == 0)


def test_case_18_close_returns_in_time_when_deletions_hang_as_well(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1, 2)
    may_end = threading.Event()
    rig.medium.fail = hanging(may_end)
    rig.put(store, 3, flush=False)
    store.put(rig.namespace.with_salt("of a manifest"), rig.key(4), b"", rig.payload(4))
    store.evict([rig.key(1), rig.key(2)])
    began_s = time.monotonic()
    store.close(0.5)
    assert time.monotonic() - began_s < 1.0
    may_end.set()
    eventually(lambda: store.num_holds == 0)


def test_case_18_a_tier_that_hangs_leaves_the_others_their_time_to_close(rig: Rig) -> None:
    hung, sound = DictBackend(), DictBackend()
    never = threading.Event()
    hung.fail = waiting("put", never)
    arena = Arena(8 * BLOCK_BYTES, slab_bytes=BLOCK_BYTES)
    specs = [
        TierSpec(TierConfig(name, 1 << 20), medium, LeafFirstLRU(), whole_blocks_that_fit)
        for name, medium in (("hung", hung), ("sound", sound))
    ]
    store = TieredStore(specs, arena)
    rig.stores.append(store)
    assert store.put(rig.namespace, rig.key(1), b"", rig.payload(1))
    store.close(0.5)
    assert sound.is_closed
    assert sound.frames.keys() == {rig.key(1)}
    never.set()


def test_close_waits_for_a_medium_that_takes_a_while_to_close(rig: Rig) -> None:
    store = rig.open()
    rig.medium.fail = lambda operation, _key: time.sleep(0.1) if operation == "close" else None
    store.close(5.0)
    assert rig.medium.is_closed


def test_case_18_a_load_that_answers_after_the_close_reports(rig: Rig) -> None:
    store = stored_on_disk(rig, 1)
    may_answer = threading.Event()
    rig.medium.fail = waiting("get", may_answer)
    hit = store.lookup([rig.key(1)])
    ticket = store.load(hit, 0, rig.now_s + 5)
    eventually(lambda: store.statistics().staging_bytes > 0)
    store.close(0.2)
    may_answer.set()
    assert ticket.wait(5.0)
    block = ticket.take()
    assert block is not None
    assert block.data == rig.payload(1)
    block.release()
    hit.release()
    assert store.num_holds == store.statistics().staging_bytes == 0


def test_case_18_loads_that_were_queued_report_at_the_close(rig: Rig) -> None:
    store = stored_on_disk(rig, 1, 2, 3, 4)
    may_answer = threading.Event()
    rig.medium.fail = waiting("get", may_answer)
    hit = store.lookup([rig.key(number) for number in (1, 2, 3, 4)])
    tickets = [store.load(hit, index, rig.now_s + 5) for index in range(4)]
    eventually(lambda: store.statistics().staging_bytes == 2 * BLOCK_BYTES)
    store.close(0.2)
    assert [ticket.done() for ticket in tickets] == [False, False, True, True]
    assert [ticket.take() for ticket in tickets[2:]] == [None, None]
    may_answer.set()
    for ticket in tickets[:2]:
        ticket.abandon()
    hit.release()
    eventually(lambda: store.num_holds == 0)
    store.check()


def test_a_block_committed_after_the_close_is_given_back(rig: Rig) -> None:
    store = rig.open()
    reservation = store.reserve(rig.namespace, rig.key(1), b"", 4096)
    assert reservation is not None
    store.close()
    reservation.commit()
    assert store.statistics().staging_bytes == store.statistics().tiers[1].used_bytes == 0


def test_a_full_write_queue_drops_the_write_and_counts_it(rig: Rig) -> None:
    store = rig.open(max_queued_writes=1)
    may_write = threading.Event()
    rig.medium.fail = waiting("put", may_write)
    began_s = time.monotonic()
    rig.put(store, 1, 2, 3, 4, 5, flush=False)
    assert time.monotonic() - began_s < 1.0, "storing never waits for a lower tier"
    may_write.set()
    store.flush(5.0)
    assert rig.counts(store, "disk")["dropped_stores"] >= 3
    assert all(rig.get(store, number) for number in (1, 2, 3, 4, 5))


def test_a_transfer_that_breaks_is_a_miss_and_leaves_no_hold(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stored_on_disk(rig, 1)

    def refuse(_arena: Arena, _nbytes: int) -> None:
        raise OSError("pages cannot be locked")

    monkeypatch.setattr(Arena, "allocate", refuse)
    assert not rig.get(store, 1)
    assert store.num_holds == 0
    monkeypatch.undo()
    assert rig.get(store, 1)
