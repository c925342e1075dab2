"""How long blocks live, and that what has ended is gone: not found, not served, not copied on."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest

from kvstore.absences import Cause
from kvstore.errors import ConfigError, RequestError
from kvstore.frame import Header
from kvstore.lives import Departure
from kvstore.retention import MAX_LIFETIME_S, Lifetime, Retention, TenantRule
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import WriteMode
from tests.eventually import eventually
from tests.kvstore.conftest import BLOCK_BYTES, NAMESPACE, Rig, SharedDict

HARD_60 = Retention(others=TenantRule(Lifetime(hard_ttl_s=60.0)))


def header_in(rig: Rig, number: int) -> Header:
    return Header.unpack(rig.medium.frames[rig.key(number)][0])


def waiting(operation: str, may_go_on: threading.Event) -> Callable[[str, bytes], None]:
    def fail(called: str, _key: bytes) -> None:
        if called == operation:
            assert may_go_on.wait(10.0)

    return fail


def test_each_tier_has_a_default_of_its_own(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(24.0, {"host": 10.0, "disk": None}))
    rig.put(store, 1)
    rig.put(store, 2, ttl_s=15.0)
    rig.now_s += 10.0
    assert store.peek([rig.key(1), rig.key(2)]) == ("disk", "host"), "one that was named holds everywhere"
    rig.now_s += 5.0
    assert store.peek([rig.key(1), rig.key(2)]) == ("disk", None)
    rig.now_s += MAX_LIFETIME_S
    assert rig.tiers(store, 1) == ["disk"], "it never ends there"


def test_a_copy_is_not_armed_again_by_being_loaded(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(24.0, {"host": 10.0}))
    rig.put(store, 1)
    rig.now_s += 9.0
    store.clear("host")
    assert rig.get(store, 1)
    assert store.peek([rig.key(1)]) == ("host",)
    rig.now_s += 1.0
    assert store.peek([rig.key(1)]) == ("disk",), "counted from its last use"
    assert rig.get(store, 1)
    assert store.peek([rig.key(1)]) == ("disk",), "it would have ended there already"
    assert rig.counts(store, "host")["promotions"] == 1


def test_the_header_carries_the_end_of_its_tier(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(24.0, {"disk": 100.0, "host": None}, retention=HARD_60))
    rig.put(store, 1)
    rig.put(store, 2, ttl_s=7.0)
    now_ms = round(rig.now_s * 1000)
    one, two = header_in(rig, 1).expiry, header_in(rig, 2).expiry
    assert (one.soft_ms, one.hard_ms) == (now_ms + 100_000, now_ms + 60_000)
    assert (two.soft_ms, two.hard_ms) == (now_ms + 7_000, now_ms + 60_000)


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan"), float("inf"), MAX_LIFETIME_S * 1.001])
def test_a_ttl_that_cannot_be_is_refused_and_nothing_is_held(rig: Rig, ttl_s: float) -> None:
    store = rig.open()
    rig.put(store, 1)
    told = f"ttl_s: must be above 0 and at most {MAX_LIFETIME_S} seconds"
    with pytest.raises(RequestError, match=told):
        store.lookup([rig.key(1)], ttl_s=ttl_s)
    with pytest.raises(RequestError, match=told):
        store.put(NAMESPACE, rig.key(2), b"", rig.payload(2), ttl_s=ttl_s)
    assert store.num_holds == 0
    for config in ({"default_ttl_s": ttl_s}, {"tier_ttls_s": {"host": ttl_s}}):
        with pytest.raises(ConfigError, match="must be positive and at most"):
            StoreConfig(**config)
    with pytest.raises(ConfigError, match="must be above 0"):
        Lifetime(hard_ttl_s=ttl_s)


def test_the_shortest_and_the_longest_ttl_are_taken(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1, ttl_s=1e-9)
    rig.put(store, 2, ttl_s=float(MAX_LIFETIME_S))
    assert store.peek([rig.key(1), rig.key(2)]) == ("host", "host")
    rig.now_s += 0.001
    assert store.peek([rig.key(1), rig.key(2)]) == (None, "host")


def test_a_default_of_a_tier_that_is_not_there_is_refused(rig: Rig) -> None:
    with pytest.raises(ConfigError, match="tape_ttl_s: 'tape' is not one of device, host, disk"):
        rig.open(config=StoreConfig(tier_ttls_s={"tape": 1.0}))


def test_a_lease_outlasts_a_soft_end_and_not_a_hard_one(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(retention=HARD_60))
    rig.put(store, 1, ttl_s=10.0)
    hit = store.lookup([rig.key(1)], lease_s=1000.0, ttl_s=1.0)
    rig.now_s += 59.0
    assert rig.tiers(store, 1) == [None]
    block = store.load(hit, 0, rig.now_s + 1).take()
    assert block is not None
    rig.now_s += 1.0
    assert store.load(hit, 0, rig.now_s + 1).take() is None
    assert not store.lookup([rig.key(2)]).records  # removes what is due
    assert not rig.counts(store, "host")["loads"] > 1
    assert block.data == rig.payload(1), "what is lent stays what it is"
    block.release()
    assert store.flush(5.0)
    assert not rig.medium.frames, "gone, although somebody has a lease"
    hit.release()


def test_a_block_that_arrives_after_its_hard_end_is_a_miss(rig: Rig) -> None:
    store = rig.open(host_blocks=0, config=StoreConfig(retention=HARD_60))
    rig.put(store, 1)
    may_read = threading.Event()
    rig.medium.fail = waiting("get", may_read)
    hit = store.lookup([rig.key(1)], lease_s=1000.0)
    ticket = store.load(hit, 0, rig.now_s + 100)
    rig.now_s += 60.0
    may_read.set()
    assert ticket.wait(5.0)
    assert ticket.take() is None
    hit.release()


@pytest.mark.parametrize("write_mode", list(WriteMode))
def test_what_ends_while_it_waits_to_be_written_is_not_written(rig: Rig, write_mode: WriteMode) -> None:
    store = rig.open(host_blocks=1, write_mode=write_mode, config=StoreConfig(retention=HARD_60))
    may_write = threading.Event()
    rig.medium.fail = waiting("put", may_write)
    rig.put(store, 9, flush=False)
    store.lookup([rig.key(9)]).release()
    rig.put(store, 1, flush=False)  # 9 makes way: where it is evicted it is written, and that stands still
    rig.now_s += 1.0
    store.lookup([rig.key(1)]).release()
    rig.put(store, 2, flush=False)
    rig.now_s += 59.0
    may_write.set()
    assert store.flush(5.0)
    assert rig.key(1) not in rig.medium.frames
    assert store.peek([rig.key(number) for number in (9, 1)]) == (None, None)
    assert store.why_absent(rig.key(1)).cause in {Cause.EXPIRED, Cause.EVICTED, Cause.DROPPED}


def test_what_has_ended_is_not_demoted(rig: Rig) -> None:
    store = rig.open(host_blocks=1, write_mode=WriteMode.BACK, config=StoreConfig(1000.0, {"host": 10.0}))
    rig.put(store, 1)
    store._sweeper.stop()
    rig.now_s += 10.0
    store._index._lives._ends._entries.clear()  # so that it is still there when room is needed
    rig.put(store, 2)
    assert not rig.medium.frames


def test_a_block_that_is_stored_again_begins_a_life_of_its_own(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(retention=HARD_60))
    rig.put(store, 1, ttl_s=10.0)
    first = header_in(rig, 1)
    rig.now_s += 60.0
    assert rig.put(store, 1, ttl_s=20.0) == 1, "it was still on the books when it was offered"
    again = header_in(rig, 1)
    assert again.created_ms == first.created_ms + 60_000
    assert again.expiry.hard_ms == first.expiry.hard_ms + 60_000
    assert again.expiry.soft_ms == round(rig.now_s * 1000) + 20_000
    rig.now_s += 19.9
    assert rig.tiers(store, 1) == ["host"]
    assert rig.get(store, 1)


@pytest.mark.parametrize("ttl_s", [10.0, None])
def test_it_does_so_where_nothing_was_swept_yet(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, ttl_s: float | None
) -> None:
    store = rig.open(config=StoreConfig(1000.0, retention=HARD_60))
    store._sweeper.stop()
    rig.put(store, 1, ttl_s=ttl_s)
    monkeypatch.setattr(store._placement, "remove_due", lambda *_: 0)
    first = header_in(rig, 1)
    rig.now_s += 60.0
    assert store._index.usage(1)[1] == store._index.usage(2)[1] == 1
    assert rig.put(store, 1) == 1
    assert header_in(rig, 1).created_ms == first.created_ms + 60_000
    rig.now_s += 59.0
    assert rig.tiers(store, 1) == ["host"]
    rig.now_s += 1.0
    assert rig.tiers(store, 1) == [None]


@pytest.mark.parametrize("rules", [Retention(), HARD_60])
def test_one_that_is_stored_again_while_the_old_one_is_about_to_go_stays(rig: Rig, rules: Retention) -> None:
    store = rig.open(config=StoreConfig(retention=rules))
    rig.put(store, 1, ttl_s=60.0)
    rig.now_s += 60.0
    due = store._index.due

    def due_and_stored_again(now_ms: int, limit: int) -> list[Departure]:
        departures = due(now_ms, limit)
        if departures:
            rig.put(store, 1)
            assert store.flush(5.0)
        return departures

    store._index.due = due_and_stored_again  # type: ignore[method-assign]  # as if by another thread
    eventually(lambda: rig.tiers(store, 1) == ["host"])
    store._index.due = due  # type: ignore[method-assign]
    assert store.flush(5.0)
    assert rig.tiers(store, 1) == ["host"]
    assert rig.key(1) in rig.medium.frames
    store.check()


def test_one_that_somebody_still_holds_is_stored_again_later(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1, ttl_s=10.0)
    hit = store.lookup([rig.key(1)], ttl_s=1.0)
    rig.now_s += 10.0
    assert rig.put(store, 1, ttl_s=10.0) == 0
    assert store.peek([rig.key(1)]) == (None,)
    hit.release()
    assert rig.put(store, 1, ttl_s=10.0) == 1
    assert rig.tiers(store, 1) == ["host"]


def test_whoever_uses_a_block_uses_all_before_it(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(10.0))
    rig.put(store, 1, 2, 3)
    rig.now_s += 9.0
    store.lookup([rig.key(3)]).release()
    rig.now_s += 9.0
    assert store.peek([rig.key(number) for number in (1, 2, 3)]) == ("host",) * 3
    store.put(NAMESPACE, rig.key(4), rig.key(2), rig.payload(4), ttl_s=100.0)
    rig.now_s += 1.0
    assert store.peek([rig.key(number) for number in (1, 2, 3, 4)]) == ("host", "host", None, "host")


@pytest.mark.parametrize("step_s", [0.0, 0.001])
def test_storing_a_long_prompt_block_by_block_is_a_use_of_its_beginning(rig: Rig, step_s: float) -> None:
    store = rig.open(host_blocks=32)
    rig.put(store, *range(1, 4), ttl_s=10.0)
    rig.now_s += 5.0
    for number in range(4, 20):
        store.put(NAMESPACE, rig.key(number), rig.key(number - 1), rig.payload(number), ttl_s=100.0)
        rig.now_s += step_s
    rig.now_s += 99.9
    assert store.peek([rig.key(number) for number in range(1, 20)]) == ("host",) * 19
    rig.now_s += 0.1
    assert store.peek([rig.key(number) for number in range(1, 20)]) == (None,) * 19


def test_but_not_beyond_their_hard_ends(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(1000.0, retention=HARD_60))
    rig.put(store, 1)
    rig.now_s += 30.0
    store.put(NAMESPACE, rig.key(2), rig.key(1), rig.payload(2))
    rig.now_s += 30.0
    assert store.peek([rig.key(1), rig.key(2)]) == (None, "host")


def test_parents_in_a_circle_end_all_the_same(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(10.0))
    for number, parent in ((1, 2), (2, 1), (3, 3)):
        store.put(NAMESPACE, rig.key(number), rig.key(parent), rig.payload(number))
    store.lookup([rig.key(number) for number in (1, 2, 3)]).release()
    rig.now_s += 10.0
    assert store.peek([rig.key(number) for number in (1, 2, 3)]) == (None,) * 3


def test_a_lookup_that_no_sweep_went_before_finds_nothing_that_has_ended(rig: Rig) -> None:
    store = many(rig, 200)
    assert store.lookup([rig.key(number) for number in range(1, 201)]).tiers == (None,) * 200
    assert store.num_holds == 0


def test_rules_of_one_tenant_do_not_reach_anothers_blocks(rig: Rig) -> None:
    salted = NAMESPACE.with_salt("acme")
    rule = TenantRule(Lifetime(ttl_s=1.0, hard_ttl_s=60.0))
    store = rig.open(config=StoreConfig(1000.0, retention=Retention(tenants={salted.salt: rule})))
    store.put(salted, rig.key(1), b"", rig.payload(1), ttl_s=100.0)
    rig.put(store, 2)
    store.lookup([rig.key(1), rig.key(2)]).release()
    rig.now_s += 60.0
    assert store.peek([rig.key(1), rig.key(2)]) == (None, "host")


def test_the_engines_pool_is_told_what_to_let_go_of(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(100.0, retention=HARD_60))
    told = threading.Event()
    store.watch_device(told.set)
    store.device_added(rig.key(1), b"", NAMESPACE)
    store.device_added(rig.key(2), rig.key(1), NAMESPACE)
    assert store.over_on_device() == []
    rig.now_s += 60.0
    assert told.wait(10.0)
    assert (
        set(store.over_on_device()) == {rig.key(1), rig.key(2)} == set(store.ended([rig.key(1), rig.key(2)]))
    )
    for number in (1, 2):
        store.device_removed(rig.key(number))
    assert store.over_on_device() == store.ended([rig.key(1)]) == []
    store.device_added(rig.key(1), b"", NAMESPACE)
    assert store.peek([rig.key(1)]) == ("device",), "computed again, it lives again"


def many(rig: Rig, num: int) -> TieredStore:
    """Return a store with that many blocks that all end at once."""
    store = rig.open(host_blocks=num + 8, disk_blocks=0)
    store._sweeper.stop()
    rig.put(store, *range(1, num + 1), ttl_s=10.0)
    rig.now_s += 10.0
    return store


def held(store: TieredStore) -> int:
    return store.statistics().tiers[1].num_blocks


def test_a_burst_of_ends_is_no_pause_and_stores_keep_up(rig: Rig) -> None:
    store = many(rig, 3000)
    assert held(store) == 3000
    store.lookup([rig.key(1)]).release()
    assert held(store) == 3000 - 64, "a few with each lookup"
    for number in range(5000, 5400):
        rig.put(store, number)
    assert held(store) == 0 + 400, "and more with each store than it adds"
    assert rig.counts(store, "host")["evictions"] == 0, "nothing that lives made way for what had ended"


def sweepers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "sweeper"}


def test_where_nobody_asks_a_thread_removes_what_is_due(rig: Rig) -> None:
    before = sweepers()
    store = rig.open(host_blocks=1000)
    rig.put(store, *range(1, 900), ttl_s=10.0)
    rig.now_s += 10.0
    eventually(lambda: held(store) == 0)
    eventually(lambda: store.flush(5.0) and not rig.medium.frames)
    assert sweepers() - before
    store.close(5.0)
    eventually(lambda: not sweepers() - before)


def test_an_engine_that_fails_to_let_go_does_not_end_the_thread(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    store = rig.open()
    num_asked = 0

    def fail() -> None:
        nonlocal num_asked
        num_asked += 1
        raise RuntimeError("a plugin's")

    store.watch_device(fail)
    rig.put(store, 1, ttl_s=10.0)
    store.device_added(rig.key(1), b"")
    rig.now_s += 10.0
    eventually(lambda: num_asked >= 2)
    rig.put(store, 2, ttl_s=10.0)
    rig.now_s += 10.0
    eventually(lambda: held(store) == 0)
    assert [record.message.split(";")[0] for record in caplog.records] == [
        "what has expired could not be removed"
    ]


def test_a_store_that_is_left_alone_leaves_no_thread_behind() -> None:
    before = sweepers()
    rig = Rig()
    rig.open()
    rig.stores.clear()
    eventually(lambda: gc.collect() >= 0 and not sweepers() - before)


def test_on_a_shared_medium_a_soft_end_is_others_to_put_off_and_a_hard_one_is_not() -> None:
    rig = Rig(medium=SharedDict())
    ours = rig.open(host_blocks=0, config=StoreConfig(retention=HARD_60))
    rig.put(ours, 1, ttl_s=10.0)
    rig.now_s += 10.0
    ours.lookup([rig.key(1)]).release()
    assert ours.flush(5.0)
    assert rig.key(1) in rig.medium.frames, "the medium ends it by itself"
    rig.put(ours, 2, ttl_s=100.0)
    rig.now_s += 60.0
    ours.lookup([rig.key(2)]).release()
    assert ours.flush(5.0)
    assert rig.key(2) not in rig.medium.frames
    ours.close()


def test_a_block_that_others_put_off_is_found_again() -> None:
    rig = Rig(medium=SharedDict())
    ours, theirs = (rig.open(host_blocks=0, config=StoreConfig(10.0)) for _ in range(2))
    rig.put(ours, 1)
    rig.now_s += 10.0
    theirs.put(NAMESPACE, rig.key(1), b"", memoryview(bytes([1]) * BLOCK_BYTES))
    assert theirs.flush(5.0)
    assert ours.peek([rig.key(1)]) == (None,)
    inquiry = ours.inquire([rig.key(1)], rig.now_s + 1)
    assert inquiry is not None
    assert inquiry.wait(5.0)
    assert rig.tiers(ours, 1) == ["disk"]
    for store in (ours, theirs):
        store.close()
