"""An operator at work while engines use the store: nothing wrong, nothing lost, nothing left behind."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest

from kvstore.admin.outcome import Kind
from kvstore.admin.progress import Progress
from kvstore.admin.selection import BlockFilter
from kvstore.errors import BackendError, PinBudgetError
from kvstore.retention import Retention, TenantRule
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import WriteMode
from tests.kvstore.conftest import BLOCK_BYTES, NAMESPACE, Rig
from tests.kvstore.faults import stored_on_disk, waiting

NUM_BLOCKS = 24
PINS = StoreConfig(retention=Retention(TenantRule(pin_bytes=1 << 20)))


def of(rig: Rig, *numbers: int) -> BlockFilter:
    return BlockFilter(keys=tuple(rig.key(number) for number in numbers))


class Meanwhile(Progress):
    """Does something between the plan and its first step."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self.act = act

    def begin(self, total: int) -> None:
        super().begin(total)
        self.act()


def test_a_block_that_is_evicted_after_the_plan_is_not_there(rig: Rig) -> None:
    store = rig.open(write_mode=WriteMode.BACK)
    rig.put(store, 1)
    outcome = store.admin.move(
        of(rig, 1), "host", "disk", progress=Meanwhile(lambda: store.evict([rig.key(1)]))
    )
    assert [stay.why.value for stay in outcome.stays] == ["not there"]
    assert outcome.effects == ()


def test_a_block_that_is_leased_after_the_plan_stays_where_it_was_as_well(rig: Rig) -> None:
    store = rig.open(write_mode=WriteMode.BACK)
    rig.put(store, 1)
    hits = []
    progress = Meanwhile(lambda: hits.append(store.lookup([rig.key(1)])))
    outcome = store.admin.move(of(rig, 1), "host", "disk", progress=progress)
    assert [effect.kind for effect in outcome.effects] == [Kind.ARRIVES]
    assert [stay.why.value for stay in outcome.stays] == ["in use"]
    hits[0].release()
    assert rig.get(store, 1)


def test_a_block_that_is_pinned_after_the_plan_goes_with_its_pin(rig: Rig) -> None:
    store = rig.open(write_mode=WriteMode.BACK, config=PINS)
    rig.put(store, 1)
    progress = Meanwhile(lambda: store.pin([rig.key(1)], for_s=60.0))
    store.admin.move(of(rig, 1), "host", "disk", progress=progress)
    assert [(pin.tier, pin.num_blocks) for pin in store.pins()] == [("disk", 1)]
    evicting = Meanwhile(lambda: store.pin([rig.key(2)], for_s=60.0))
    rig.put(store, 2)
    outcome = store.admin.evict(of(rig, 2), progress=evicting)
    assert [stay.why.value for stay in outcome.stays] == ["pinned"]


def test_a_budget_that_others_pins_took_after_the_plan_holds(rig: Rig) -> None:
    rules = Retention(TenantRule(pin_bytes=2 * BLOCK_BYTES))
    store = rig.open(write_mode=WriteMode.BACK, config=StoreConfig(retention=rules))
    rig.put(store, 1)
    rig.put(store, 2)
    store.pin([rig.key(1)], for_s=60.0)
    taking = Meanwhile(lambda: store.pin([rig.key(2)], for_s=60.0))
    outcome = store.admin.move(of(rig, 1), "host", "disk", progress=taking)
    assert [effect.kind for effect in outcome.effects] == [Kind.ARRIVES]
    assert [stay.why.value for stay in outcome.stays] == ["pin would not fit"]
    assert [(pin.tier, pin.num_blocks) for pin in store.pins()] == [("host", 2)]


def test_half_of_a_tier_that_others_pins_took_after_the_plan_holds(rig: Rig) -> None:
    store = rig.open(disk_blocks=3, write_mode=WriteMode.BACK, config=PINS)
    rig.put(store, 1)
    rig.put(store, 2)
    store.admin.move(of(rig, 2), "host", "disk")
    store.pin([rig.key(1)], for_s=60.0)
    taking = Meanwhile(lambda: store.pin([rig.key(2)], for_s=60.0))
    outcome = store.admin.move(of(rig, 1), "host", "disk", progress=taking)
    assert [effect.kind for effect in outcome.effects] == [Kind.ARRIVES]
    assert [stay.why.value for stay in outcome.stays] == ["pin would not fit"]
    assert {(pin.tier, pin.num_blocks) for pin in store.pins()} == {("host", 1), ("disk", 1)}


def test_what_has_arrived_does_not_make_way_for_what_comes_after_it(rig: Rig) -> None:
    store = rig.open(host_blocks=8, disk_blocks=2, write_mode=WriteMode.BACK)
    rig.put(store, 8)
    rig.put(store, 9)
    store.admin.move(BlockFilter(), "host", "disk")
    rig.put(store, 1)
    rig.put(store, 2)

    class Using(Progress):
        def step(self) -> None:
            super().step()
            rig.now_s += 1.0
            store.lookup([rig.key(9)]).release()

    outcome = store.admin.move(of(rig, 1, 2), "host", "disk", progress=Using())
    assert [(effect.kind.value, effect.key[-1]) for effect in outcome.effects] == [
        ("evicted", 8), ("arrives", 1), ("leaves", 1), ("evicted", 9), ("arrives", 2), ("leaves", 2),
    ]  # fmt: skip


def test_what_waits_to_be_written_is_called_off(rig: Rig) -> None:
    store = rig.open(host_blocks=1, write_mode=WriteMode.BACK)
    may_write = threading.Event()
    rig.medium.fail = waiting("put", may_write)
    rig.put(store, 1, flush=False)
    rig.put(store, 2, flush=False)  # 1 is on its way to the disk
    rig.put(store, 3, flush=False)
    rig.put(store, 1, flush=False)  # again, while it is written
    store.admin.evict(of(rig, 1, 2, 3))
    may_write.set()
    assert store.flush(5.0)
    assert rig.tiers(store, 1, 2, 3) == [None] * 3
    assert rig.medium.frames == {}


@pytest.mark.parametrize(("source", "target"), [("host", "disk"), ("disk", "host")])
def test_a_block_that_another_brings_meanwhile_is_there_already(rig: Rig, source: str, target: str) -> None:
    store = rig.open(write_mode=WriteMode.BACK)
    rig.put(store, 1)
    store.admin.move(BlockFilter(), None, "disk")
    if source == "host":
        store.admin.move(BlockFilter(), "disk", "host")
    bringing = Meanwhile(lambda: store.admin.warm(of(rig, 1), target))
    outcome = store.admin.warm(of(rig, 1), target, progress=bringing)
    assert outcome.effects == ()
    assert [stay.why.value for stay in outcome.stays] == ["already there"]
    store.admin.evict(of(rig, 1), [target])
    moved = store.admin.move(of(rig, 1), source, target, progress=bringing)
    assert [(effect.kind, effect.tier) for effect in moved.effects] == [(Kind.LEAVES, source)]
    assert rig.tiers(store, 1) == [target]


def test_a_block_that_the_target_lost_after_the_plan_stays_where_it_is(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    losing = Meanwhile(lambda: store.admin.evict(of(rig, 1), ["disk"]))
    outcome = store.admin.move(of(rig, 1), "host", "disk", progress=losing)
    assert outcome.effects == ()
    assert [stay.why.value for stay in outcome.stays] == ["failed"]
    assert rig.tiers(store, 1) == ["host"]


def test_a_block_that_ends_for_good_after_the_plan_does_not_come_back(rig: Rig) -> None:
    store = rig.open(write_mode=WriteMode.BACK)
    rig.put(store, 1)
    store.admin.set_ttl(of(rig, 1), hard_ttl_s=10.0)

    def pass_time() -> None:
        rig.now_s += 11.0

    outcome = store.admin.move(of(rig, 1), "host", "disk", progress=Meanwhile(pass_time))
    assert outcome.effects == ()
    assert [stay.why.value for stay in outcome.stays] == ["not there"]
    assert rig.medium.frames == {}


def test_a_block_that_goes_into_quarantine_while_it_is_read_does_not_arrive(rig: Rig) -> None:
    store = stored_on_disk(rig, 1)

    def quarantine(operation: str, key: bytes) -> None:
        if operation == "get":
            store.quarantine(key)

    rig.medium.fail = quarantine
    outcome = store.admin.warm(of(rig, 1))
    assert outcome.effects == ()
    assert store.admin.block(rig.key(1)) is None


def test_more_room_is_made_when_others_took_what_was_planned(rig: Rig) -> None:
    store = rig.open(host_blocks=8, disk_blocks=2, write_mode=WriteMode.BACK)
    rig.put(store, 1)
    store.admin.move(BlockFilter(), "host", "disk")
    rig.put(store, 2)
    rig.put(store, 3)
    assert store.admin.move(of(rig, 3), "host", "disk", dry_run=True).of(Kind.EVICTED) == {}

    def fill() -> None:
        store.admin.move(of(rig, 2), "host", "disk")

    outcome = store.admin.move(of(rig, 3), "host", "disk", progress=Meanwhile(fill))
    assert [(effect.kind.value, effect.key[-1]) for effect in outcome.effects] == [
        ("evicted", 1), ("arrives", 3), ("leaves", 3),
    ]  # fmt: skip


def test_what_memory_demotes_while_the_disk_is_cleared_does_not_stay(rig: Rig) -> None:
    store = rig.open(host_blocks=1, disk_blocks=4, write_mode=WriteMode.BACK)
    rig.put(store, 1)
    store.admin.move(BlockFilter(), "host", "disk")
    rig.put(store, 2)

    def clear(operation: str, key: bytes) -> None:
        if operation == "put" and key == rig.key(2):
            store.clear("disk")

    rig.medium.fail = clear
    store.admin.warm(of(rig, 1))
    assert store.flush(5.0)
    assert rig.key(2) not in rig.medium.frames
    assert store.admin.block(rig.key(2)) is None


class Engine(threading.Thread):
    """Stores, looks up and loads at random; every block it gets must be the right one."""

    def __init__(self, rig: Rig, store: TieredStore, seed: int, until_s: float) -> None:
        super().__init__(daemon=True)
        self.rig, self.store, self.rng, self.until_s = rig, store, random.Random(seed), until_s
        self.fault: BaseException | None = None

    def run(self) -> None:
        try:
            while time.monotonic() < self.until_s:
                start = self.rng.randrange(NUM_BLOCKS)
                numbers = range(start, min(start + 4, NUM_BLOCKS))
                if self.rng.random() < 0.5:
                    self.rig.put(self.store, *numbers, flush=False)
                hit = self.store.lookup([self.rig.key(number) for number in numbers])
                self.rig.get(self.store, self.rng.choice(numbers))
                hit.release()
        except BaseException as fault:  # noqa: BLE001 - told by the test
            self.fault = fault


class Operator(Engine):
    """Moves, warms, evicts, pins, drains and verifies at random."""

    def run(self) -> None:
        try:
            while time.monotonic() < self.until_s:
                self.act()
        except BaseException as fault:  # noqa: BLE001 - told by the test
            self.fault = fault

    def act(self) -> None:
        admin, rng = self.store.admin, self.rng
        wanted = rng.choice([
            of(self.rig, *(rng.randrange(NUM_BLOCKS) for _ in range(4))),
            BlockFilter(prefix=self.rig.key(rng.randrange(NUM_BLOCKS))),
        ])  # fmt: skip
        source, target = rng.sample(["host", "disk"], 2)
        action = rng.randrange(8)
        if action < 3:
            admin.move(wanted, source, target)
        elif action == 3:
            admin.warm(wanted)
        elif action == 4:
            admin.evict(wanted)
        elif action == 5:
            try:
                self.store.pin([self.rig.key(rng.randrange(NUM_BLOCKS))], for_s=0.05)
            except PinBudgetError:
                return
        elif action == 6:
            admin.drain(source, target)
            admin.undrain(source)
        else:
            assert admin.verify(wanted).bad == ()
            admin.blocks(limit=5)
            admin.prefixes("hits")


@pytest.mark.parametrize("write_mode", list(WriteMode))
def test_operators_and_engines_at_once(rig: Rig, write_mode: WriteMode) -> None:
    store = rig.open(host_blocks=6, disk_blocks=12, write_mode=write_mode, config=PINS)
    store.register_namespace(NAMESPACE)
    until_s = time.monotonic() + 1.0
    makers = (Engine, Engine, Operator, Operator)
    threads = [make(rig, store, seed, until_s) for seed, make in enumerate(makers)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        store.check()
        rig.now_s += 0.001
        time.sleep(0.005)
    for thread in threads:
        thread.join()
        if thread.fault is not None:
            raise thread.fault
    assert store.flush(5.0)
    store.check()
    assert store.num_holds == 0
    assert rig.medium.stats().occupied_bytes == store.statistics().tiers[2].used_bytes
    assert len(store._index.spared) == 0


def test_a_flaky_medium_under_an_operator(rig: Rig) -> None:
    store = rig.open(host_blocks=6, disk_blocks=12, write_mode=WriteMode.BACK, config=PINS)
    rng = random.Random(5)

    def flaky(operation: str, _key: bytes) -> None:
        if operation != "close" and rng.random() < 0.1:
            raise BackendError("disk", operation, "flaky")

    rig.medium.fail = flaky
    operator = Operator(rig, store, 6, 0.0)
    for _ in range(300):
        start = rng.randrange(NUM_BLOCKS)
        rig.put(store, *range(start, min(start + 4, NUM_BLOCKS)), flush=False)
        rig.get(store, start)
        operator.act()
        store.check()
        rig.now_s += 1.0
    rig.medium.fail = lambda _operation, _key: None
    assert store.flush(5.0)
    store.check()
    assert store.num_holds == 0
