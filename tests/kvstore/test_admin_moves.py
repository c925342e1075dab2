"""Evicting, moving and warming: what a dry run says, and that the very same happens then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvstore.admin.outcome import Amount, Effect, Kind, Outcome, Stay, Why
from kvstore.admin.progress import Progress
from kvstore.admin.selection import BlockFilter
from kvstore.errors import BackendError, RequestError
from kvstore.namespace import Namespace
from kvstore.retention import Lifetime, Retention, TenantRule
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import WriteMode
from tests.kvstore.conftest import BLOCK_BYTES, NAMESPACE, Rig
from tests.kvstore.faults import raising, stored_on_disk

IN_MEMORY, ON_DISK = BLOCK_BYTES, BLOCK_BYTES + 192
PINS = StoreConfig(retention=Retention(TenantRule(pin_bytes=1 << 20)))
ACME = NAMESPACE.with_salt("acme")


def of(rig: Rig, *numbers: int) -> BlockFilter:
    return BlockFilter(keys=tuple(rig.key(number) for number in numbers))


def told(outcome: Outcome) -> list[tuple[str, int, str]]:
    return [(effect.kind.value, effect.key[-1], effect.tier) for effect in outcome.effects]


def stays(outcome: Outcome) -> list[tuple[int, str, str]]:
    return [(stay.key[-1], stay.tier, stay.why.value) for stay in outcome.stays]


def done_as_foretold(store: TieredStore, operate: Callable[..., Outcome], *arguments: object) -> Outcome:
    """Return what an operation does after checking that a dry run says so, and changes nothing."""
    before = store.admin.blocks(limit=1000)
    foretold = operate(*arguments, dry_run=True)
    assert store.admin.blocks(limit=1000) == before
    done = operate(*arguments)
    assert done == foretold
    assert store.flush(5.0)
    store.check()
    return done


def put(store: TieredStore, rig: Rig, namespace: Namespace, *numbers: int) -> None:
    parents = [b"", *(rig.key(number) for number in numbers)]
    for number, parent in zip(numbers, parents, strict=False):
        store.put(namespace, rig.key(number), parent, rig.payload(number))
    assert store.flush(5.0)


def test_evicting_a_prefix_from_every_tier(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1, 2)
    rig.put(store, 3)
    outcome = done_as_foretold(store, store.admin.evict, BlockFilter(prefix=rig.key(1)))
    assert outcome == Outcome(
        2,
        (
            Effect(Kind.LEAVES, rig.key(2), "host", IN_MEMORY, ""),
            Effect(Kind.LEAVES, rig.key(2), "disk", ON_DISK, ""),
            Effect(Kind.LEAVES, rig.key(1), "host", IN_MEMORY, ""),
            Effect(Kind.LEAVES, rig.key(1), "disk", ON_DISK, ""),
        ),
    )
    assert outcome.of(Kind.LEAVES) == {"host": Amount(2, 2 * IN_MEMORY), "disk": Amount(2, 2 * ON_DISK)}
    assert rig.tiers(store, 1, 2, 3) == [None, None, "host"]
    assert list(rig.medium.frames) == [rig.key(3)]
    assert store.why_absent(rig.key(1)).cause.value == "cleared"


def test_evicting_from_one_tier_leaves_the_others(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    outcome = done_as_foretold(store, store.admin.evict, of(rig, 1), ["host"])
    assert told(outcome) == [("leaves", 1, "host")]
    assert rig.tiers(store, 1) == ["disk"]


def test_what_is_in_use_pinned_or_not_there_is_not_evicted(rig: Rig) -> None:
    store = rig.open(config=PINS)
    rig.put(store, 1, 2)
    rig.put(store, 3)
    rig.put(store, 4)
    store.pin([rig.key(2)], for_s=60.0, tiers=["host"])  # and 1 with it
    hit = store.lookup([rig.key(3)])
    outcome = done_as_foretold(store, store.admin.evict, of(rig, 1, 2, 3, 4, 5))
    hit.release()
    assert told(outcome) == [
        ("leaves", 4, "host"), ("leaves", 4, "disk"), ("leaves", 2, "disk"), ("leaves", 1, "disk"),
    ]  # fmt: skip
    assert stays(outcome) == [
        (5, "", "not there"),
        (3, "host", "in use"),
        (3, "disk", "in use"),
        (2, "host", "pinned"),
        (1, "host", "pinned"),
    ]
    assert outcome.reasons() == {
        "not there": Amount(1, 0), "in use": Amount(2, 2 * IN_MEMORY), "pinned": Amount(2, 2 * IN_MEMORY),
    }  # fmt: skip


def test_what_another_tenant_has_is_not_there(rig: Rig) -> None:
    store = rig.open()
    put(store, rig, NAMESPACE, 1)
    put(store, rig, ACME, 2)
    mine = BlockFilter(keys=(rig.key(1), rig.key(2)), tenant=ACME.salt)
    outcome = done_as_foretold(store, store.admin.evict, mine, ["host"])
    assert (told(outcome), stays(outcome)) == ([("leaves", 2, "host")], [(1, "", "not there")])


def test_dropping_a_namespace(rig: Rig) -> None:
    store = rig.open()
    put(store, rig, NAMESPACE, 1)
    put(store, rig, ACME, 2)
    outcome = done_as_foretold(store, store.admin.drop_namespace, ACME.digest)
    assert told(outcome) == [("leaves", 2, "host"), ("leaves", 2, "disk")]
    assert [view.digest for view in store.admin.namespaces()] == [NAMESPACE.digest]


def test_moving_down_and_back_up(rig: Rig) -> None:
    store = rig.open(write_mode=WriteMode.BACK)
    rig.put(store, 1, 2, ttl_s=60.0)
    rig.now_s += 10.0
    down = done_as_foretold(store, store.admin.move, of(rig, 2, 1), "host", "disk")
    assert down.effects == (
        Effect(Kind.ARRIVES, rig.key(1), "disk", ON_DISK, ""),
        Effect(Kind.LEAVES, rig.key(1), "host", IN_MEMORY, ""),
        Effect(Kind.ARRIVES, rig.key(2), "disk", ON_DISK, ""),
        Effect(Kind.LEAVES, rig.key(2), "host", IN_MEMORY, ""),
    )
    view = store.admin.block(rig.key(2))
    assert view is not None
    assert (view.tiers, view.ends_ms, view.created_ms) == (("disk",), {"disk": 1_060_000}, 1_000_000)
    up = done_as_foretold(store, store.admin.move, of(rig, 1, 2), "disk", "host")
    assert told(up) == [
        ("arrives", 1, "host"), ("leaves", 1, "disk"), ("arrives", 2, "host"), ("leaves", 2, "disk"),
    ]  # fmt: skip
    assert rig.medium.frames == {}
    assert rig.get(store, 1)
    assert rig.get(store, 2)


def test_what_moved_is_there_after_a_restart(rig: Rig) -> None:
    store = rig.open(write_mode=WriteMode.BACK)
    rig.put(store, 1, 2)
    store.admin.move(BlockFilter(), None, "disk")
    store.close()
    again = rig.open()
    assert rig.tiers(again, 1, 2) == ["disk", "disk"]
    assert rig.get(again, 2)


def test_what_is_there_already_only_goes_from_the_source(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    outcome = done_as_foretold(store, store.admin.move, of(rig, 1), "host", "disk")
    assert told(outcome) == [("leaves", 1, "host")]
    again = done_as_foretold(store, store.admin.move, of(rig, 1), "host", "disk")
    assert stays(again) == [(1, "disk", "already there")]
    assert again.effects == ()


def test_what_is_in_use_does_not_move(rig: Rig) -> None:
    store = rig.open(write_mode=WriteMode.BACK)
    rig.put(store, 1)
    hit = store.lookup([rig.key(1)])
    outcome = done_as_foretold(store, store.admin.move, of(rig, 1), "host", "disk")
    hit.release()
    assert (told(outcome), stays(outcome)) == ([], [(1, "disk", "in use")])


def test_others_make_way_but_not_what_moves_nor_what_it_follows(rig: Rig) -> None:
    store = rig.open(host_blocks=8, disk_blocks=4, write_mode=WriteMode.BACK)
    rig.put(store, 1, 2)
    store.admin.move(of(rig, 1), "host", "disk")
    rig.put(store, 5)
    rig.put(store, 6)
    rig.put(store, 7)
    store.admin.move(of(rig, 5, 6, 7), "host", "disk")
    outcome = done_as_foretold(store, store.admin.move, of(rig, 2), "host", "disk")
    assert told(outcome) == [("evicted", 5, "disk"), ("arrives", 2, "disk"), ("leaves", 2, "host")]
    assert rig.tiers(store, 1, 2, 5, 6) == ["disk", "disk", None, "disk"]


def test_many_blocks_make_way_for_many(rig: Rig) -> None:
    store = rig.open(host_blocks=700, disk_blocks=600, write_mode=WriteMode.BACK)
    for number in range(0, 600, 4):
        rig.put(store, *range(number, number + 4), flush=False)
    store.admin.move(BlockFilter(), "host", "disk")
    for number in range(1000, 1700, 4):
        rig.put(store, *range(number, number + 4), flush=False)
    outcome = done_as_foretold(store, store.admin.move, BlockFilter(tier="host"), "host", "disk")
    assert outcome.of(Kind.EVICTED) == {"disk": Amount(600, 600 * ON_DISK)}
    assert outcome.of(Kind.ARRIVES) == {"disk": Amount(600, 600 * ON_DISK)}
    assert outcome.reasons() == {"would not fit": Amount(100, 100 * IN_MEMORY)}


def test_what_does_not_fit_stays(rig: Rig) -> None:
    store = rig.open(host_blocks=8, disk_blocks=2, write_mode=WriteMode.BACK)
    rig.put(store, 1, 2, 3)
    outcome = done_as_foretold(store, store.admin.move, BlockFilter(), "host", "disk")
    assert told(outcome) == [
        ("arrives", 1, "disk"), ("leaves", 1, "host"), ("arrives", 2, "disk"), ("leaves", 2, "host"),
    ]  # fmt: skip
    assert stays(outcome) == [(3, "disk", "would not fit")]
    assert rig.tiers(store, 1, 2, 3) == ["disk", "disk", "host"]


def test_warming_demotes_what_memory_evicts(rig: Rig) -> None:
    store = rig.open(host_blocks=2, disk_blocks=4, write_mode=WriteMode.BACK)
    for number in (1, 2, 3, 4, 5, 6):
        rig.put(store, number)
    assert [len(rig.medium.frames), store.statistics().tiers[1].num_blocks] == [4, 2]
    rig.now_s += 1.0
    outcome = done_as_foretold(store, store.admin.warm, of(rig, 3, 4))
    assert outcome.effects == (
        Effect(Kind.EVICTED, rig.key(1), "disk", ON_DISK, ""),
        Effect(Kind.EVICTED, rig.key(5), "host", IN_MEMORY, ""),
        Effect(Kind.DEMOTED, rig.key(5), "disk", ON_DISK, ""),
        Effect(Kind.ARRIVES, rig.key(3), "host", IN_MEMORY, ""),
        Effect(Kind.EVICTED, rig.key(2), "disk", ON_DISK, ""),
        Effect(Kind.EVICTED, rig.key(6), "host", IN_MEMORY, ""),
        Effect(Kind.DEMOTED, rig.key(6), "disk", ON_DISK, ""),
        Effect(Kind.ARRIVES, rig.key(4), "host", IN_MEMORY, ""),
    )
    assert rig.tiers(store, 1, 2, 3, 4, 5, 6) == [None, None, "host", "host", "disk", "disk"]
    assert sorted(rig.medium.frames) == [rig.key(number) for number in (3, 4, 5, 6)]
    assert rig.counts(store, "host")["promotions"] == 2
    assert stays(done_as_foretold(store, store.admin.warm, of(rig, 3))) == [(3, "host", "already there")]


def test_what_has_moved_up_leaves_room_for_what_memory_evicts_next(rig: Rig) -> None:
    store = rig.open(host_blocks=2, disk_blocks=2, write_mode=WriteMode.BACK)
    for number in (1, 2, 5, 6):
        rig.put(store, number)
    outcome = done_as_foretold(store, store.admin.move, of(rig, 1, 2), "disk", "host")
    assert told(outcome) == [
        ("evicted", 5, "host"), ("arrives", 1, "host"), ("leaves", 1, "disk"),
        ("evicted", 6, "host"), ("demoted", 6, "disk"), ("arrives", 2, "host"), ("leaves", 2, "disk"),
    ]  # fmt: skip


def test_who_does_not_suffice_for_a_large_block_makes_way_for_a_small_one(rig: Rig) -> None:
    rig.put(rig.open(host_blocks=0), 11)
    rig.stores[0].put(NAMESPACE, rig.key(10), b"", memoryview(bytes(2 * BLOCK_BYTES)))
    rig.stores[0].close()
    store = rig.open(host_blocks=2)
    rig.put(store, 1)
    rig.put(store, 2)
    hit = store.lookup([rig.key(2)])
    outcome = done_as_foretold(store, store.admin.warm, of(rig, 10, 11))
    hit.release()
    assert told(outcome) == [("evicted", 1, "host"), ("arrives", 11, "host")]
    assert stays(outcome) == [(10, "host", "would not fit")]


def test_more_than_memory_holds_is_warmed_as_far_as_it_goes(rig: Rig) -> None:
    rig.put(rig.open(host_blocks=0), 1, 2, 3)
    rig.stores[0].close()
    store = rig.open(host_blocks=2)
    outcome = done_as_foretold(store, store.admin.warm, BlockFilter())
    assert told(outcome) == [("arrives", 1, "host"), ("arrives", 2, "host")]
    assert stays(outcome) == [(3, "host", "would not fit")]


def test_a_pin_and_ends_go_with_a_block(rig: Rig) -> None:
    store = rig.open(write_mode=WriteMode.BACK, config=PINS)
    rig.put(store, 1, 2, ttl_s=20.0)
    store.pin([rig.key(2)], for_s=60.0)
    before = store.admin.block(rig.key(2))
    assert before is not None
    outcome = done_as_foretold(store, store.admin.move, BlockFilter(), "host", "disk")
    assert [effect.tier for effect in outcome.effects] == ["disk", "host"] * 2
    after = store.admin.block(rig.key(2))
    assert after is not None
    assert after.pinned_until_ms == {"disk": 1_060_000}
    assert after.ends_ms == {"disk": before.ends_ms["host"]}
    assert [(pin.tier, pin.num_blocks, pin.charged_bytes) for pin in store.pins()] == [
        ("disk", 2, 2 * ON_DISK)
    ]
    store.check()


def test_a_pin_that_would_not_fit_keeps_its_block_where_it_is(rig: Rig) -> None:
    rules = Retention(TenantRule(pin_bytes=IN_MEMORY))  # on disk a block has a header as well
    store = rig.open(write_mode=WriteMode.BACK, config=StoreConfig(retention=rules))
    rig.put(store, 1)
    rig.put(store, 2)
    store.pin([rig.key(1)], for_s=60.0)
    outcome = done_as_foretold(store, store.admin.move, BlockFilter(), "host", "disk")
    assert stays(outcome) == [(1, "disk", "pin would not fit")]
    assert told(outcome) == [("arrives", 2, "disk"), ("leaves", 2, "host")]
    assert [(pin.tier, pin.charged_bytes) for pin in store.pins()] == [("host", IN_MEMORY)]


def test_half_of_a_tier_may_be_pinned_by_moves_as_well(rig: Rig) -> None:
    store = rig.open(disk_blocks=2, write_mode=WriteMode.BACK, config=PINS)
    rig.put(store, 1, 2)
    store.pin([rig.key(2)], for_s=60.0)
    outcome = done_as_foretold(store, store.admin.move, BlockFilter(), "host", "disk")
    assert stays(outcome) == [(2, "disk", "pin would not fit")]
    assert rig.tiers(store, 1, 2) == ["disk", "host"]


def test_a_quota_of_the_target_holds(rig: Rig) -> None:
    rules = Retention(tenants={ACME.salt: TenantRule(quotas={"disk": 2 * ON_DISK})})
    store = rig.open(write_mode=WriteMode.BACK, config=StoreConfig(retention=rules))
    put(store, rig, NAMESPACE, 9)
    put(store, rig, ACME, 1)
    put(store, rig, ACME, 2)
    store.admin.move(BlockFilter(), "host", "disk")
    put(store, rig, ACME, 3)
    outcome = done_as_foretold(store, store.admin.move, of(rig, 3), "host", "disk")
    assert told(outcome) == [("evicted", 1, "disk"), ("arrives", 3, "disk"), ("leaves", 3, "host")]
    put(store, rig, ACME, 4, 5, 6)
    beyond = done_as_foretold(store, store.admin.move, of(rig, 4, 5, 6), "host", "disk")
    assert stays(beyond) == [(6, "disk", "quota")]
    assert beyond.of(Kind.EVICTED) == {"disk": Amount(2, 2 * ON_DISK)}


def test_a_block_whose_time_would_be_over_in_the_target_stays(rig: Rig) -> None:
    store = rig.open(write_mode=WriteMode.BACK, config=StoreConfig(tier_ttls_s={"disk": 5.0}))
    rig.put(store, 1)
    rig.now_s += 6.0
    outcome = done_as_foretold(store, store.admin.move, of(rig, 1), "host", "disk")
    assert stays(outcome) == [(1, "disk", "would have ended there")]


def test_a_hard_end_goes_with_a_block(rig: Rig) -> None:
    rules = Retention(TenantRule(Lifetime(hard_ttl_s=30.0)))
    store = rig.open(write_mode=WriteMode.BACK, config=StoreConfig(retention=rules))
    rig.put(store, 1)
    rig.now_s += 20.0
    store.admin.move(of(rig, 1), "host", "disk")
    view = store.admin.block(rig.key(1))
    assert view is not None
    assert (view.hard_ms, view.tiers) == (1_030_000, ("disk",))
    rig.now_s += 10.0
    assert store.admin.block(rig.key(1)) is None


def test_a_copy_that_is_bad_does_not_move_on(rig: Rig) -> None:
    store = stored_on_disk(rig, 1)
    header, payload = rig.medium.frames[rig.key(1)]
    rig.medium.frames[rig.key(1)] = header, b"\x00" + payload[1:]
    outcome = store.admin.warm(of(rig, 1))
    assert (told(outcome), stays(outcome)) == ([], [(1, "host", "failed")])
    assert store.admin.block(rig.key(1)) is None
    assert rig.counts(store, "disk")["corrupt"] == 1


def test_a_write_that_fails_leaves_the_block_where_it_was(rig: Rig) -> None:
    store = rig.open(write_mode=WriteMode.BACK)
    rig.put(store, 1)
    rig.medium.fail = raising("put", BackendError("disk", "put", "no"))
    outcome = store.admin.move(of(rig, 1), "host", "disk")
    assert (told(outcome), stays(outcome)) == ([], [(1, "disk", "failed")])
    assert rig.tiers(store, 1) == ["host"]


def test_a_source_that_cannot_delete_says_so(rig: Rig) -> None:
    store = stored_on_disk(rig, 1)
    rig.medium.fail = raising("delete", BackendError("disk", "delete", "no"))
    outcome = store.admin.move(of(rig, 1), "disk", "host")
    assert told(outcome) == [("arrives", 1, "host")]
    assert stays(outcome) == [(1, "host", "failed")]
    assert rig.tiers(store, 1) == ["host"]
    rig.medium.fail = lambda _operation, _key: None


def test_a_tier_that_is_out_is_left_alone(rig: Rig) -> None:
    store = stored_on_disk(rig, 1, 2)
    rig.medium.fail = raising("get", BackendError("disk", "get", "no"))
    for _ in range(3):
        store.get_into(rig.key(1), memoryview(bytearray(BLOCK_BYTES)))
    outcome = done_as_foretold(store, store.admin.warm, of(rig, 1))
    assert stays(outcome) == [(1, "host", "the tier is out")]


def test_what_is_in_quarantine_does_not_move(rig: Rig) -> None:
    store = rig.open(write_mode=WriteMode.BACK)
    rig.put(store, 1)
    store.device_added(rig.key(1), b"", NAMESPACE)
    store.quarantine(rig.key(1))
    outcome = done_as_foretold(store, store.admin.move, of(rig, 1), None, "disk")
    assert stays(outcome) == [(1, "disk", "in quarantine")]
    store.device_removed(rig.key(1))


def test_what_the_engines_pool_alone_has_cannot_be_moved_or_evicted(rig: Rig) -> None:
    store = rig.open()
    store.device_added(rig.key(1), b"", NAMESPACE)
    assert stays(done_as_foretold(store, store.admin.move, of(rig, 1), None, "disk")) == [
        (1, "disk", "not there")
    ]
    assert stays(done_as_foretold(store, store.admin.evict, of(rig, 1))) == [(1, "", "not there")]
    store.device_removed(rig.key(1))


def test_tiers_that_cannot_be(rig: Rig) -> None:
    admin = rig.open().admin
    with pytest.raises(RequestError, match="target: blocks of 'host' are there already"):
        admin.move(BlockFilter(), "host", "host")
    with pytest.raises(RequestError, match="source: 'device' is not one of host, disk"):
        admin.move(BlockFilter(), "device", "host")
    with pytest.raises(RequestError, match="target: 'tape'"):
        admin.warm(BlockFilter(), "tape")
    with pytest.raises(RequestError, match="tiers: 'tape'"):
        admin.evict(BlockFilter(), ["tape"])
    with pytest.raises(RequestError, match="tier: 'device'"):
        admin.drain("device")
    with pytest.raises(RequestError, match="target: "):
        rig.open(host_blocks=0, disk_blocks=0).admin.warm(BlockFilter())


class Cancelled(Progress):
    """Calls an operation off after some steps."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def step(self) -> None:
        super().step()
        self.is_cancelled = self.done >= self.after


def test_an_operation_that_is_called_off_has_done_what_it_has_done(rig: Rig) -> None:
    store = rig.open(write_mode=WriteMode.BACK)
    rig.put(store, 1, 2, 3)
    progress = Cancelled(after=2)
    outcome = store.admin.move(BlockFilter(), "host", "disk", progress=progress)
    assert outcome.is_cancelled
    assert (progress.done, progress.total) == (2, 3)
    assert rig.tiers(store, 1, 2, 3) == ["disk", "disk", "host"]
    evicted = store.admin.evict(BlockFilter(), progress=Cancelled(after=1))
    assert (told(evicted), evicted.is_cancelled) == ([("leaves", 3, "host")], True)


def test_a_victim_that_is_used_after_the_plan_is_spared(rig: Rig) -> None:
    store = rig.open(host_blocks=8, disk_blocks=2, write_mode=WriteMode.BACK)
    rig.put(store, 1)
    rig.put(store, 2)
    store.admin.move(BlockFilter(), "host", "disk")
    rig.put(store, 3)

    class Using(Progress):
        def begin(self, total: int) -> None:
            super().begin(total)
            rig.now_s += 1.0
            store.lookup([rig.key(1)]).release()

    outcome = store.admin.move(of(rig, 3), "host", "disk", progress=Using())
    assert told(outcome) == [("evicted", 2, "disk"), ("arrives", 3, "disk"), ("leaves", 3, "host")]


def test_a_tier_that_drains_takes_nothing_and_is_still_read(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    assert store.admin.drain("host", dry_run=True) == Outcome(1)
    assert store.admin.draining == frozenset()
    store.admin.drain("host")
    assert store.admin.draining == {"host"}
    rig.put(store, 2)
    assert rig.tiers(store, 1, 2) == ["host", "disk"]
    assert rig.get(store, 2)
    assert rig.tiers(store, 2) == ["disk"]
    assert stays(done_as_foretold(store, store.admin.warm, of(rig, 2))) == [(2, "host", "not admitted")]
    _, host, disk = store.statistics().tiers
    assert (host.is_draining, disk.is_draining) == (True, False)
    assert store.health().tiers["host"].reason == "draining: it takes no new blocks"
    store.admin.undrain("host")
    assert rig.get(store, 2)
    assert rig.tiers(store, 2) == ["host"]
    assert store.health().tiers["host"].reason == ""


def test_draining_memory_writes_at_once_what_would_be_written_when_it_evicts(rig: Rig) -> None:
    store = rig.open(write_mode=WriteMode.BACK)
    store.admin.drain("host")
    assert rig.put(store, 1) == 1
    assert rig.tiers(store, 1) == ["disk"]


def test_draining_into_another_tier(rig: Rig) -> None:
    store = rig.open(write_mode=WriteMode.BACK)
    rig.put(store, 1, 2)
    rig.put(store, 3)
    hit = store.lookup([rig.key(3)])
    outcome = done_as_foretold(store, store.admin.drain, "host", "disk")
    hit.release()
    assert stays(outcome) == [(3, "disk", "in use")]
    assert told(done_as_foretold(store, store.admin.drain, "host", "disk")) == [
        ("arrives", 3, "disk"), ("leaves", 3, "host"),
    ]  # fmt: skip
    assert store.statistics().tiers[1].num_blocks == 0


def test_a_disk_that_drains_is_not_written_behind_any_more(rig: Rig) -> None:
    store = rig.open(host_blocks=1, write_mode=WriteMode.BACK)
    rig.put(store, 1)
    store.admin.drain("disk")
    rig.put(store, 2)
    assert rig.medium.frames == {}
    assert rig.counts(store, "disk")["dropped_stores"] == 1


@pytest.mark.parametrize("why", list(Why))
def test_every_reason_reads_well(why: Why) -> None:
    assert Outcome(1, stays=(Stay(b"", "", why, 1),)).reasons() == {why.value: Amount(1, 1)}
