"""Headers follow the ends of their blocks, behind, and never promise more than a hard end allows."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from backends.disk import DiskBackend
from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.errors import BackendError
from kvstore.frame import NEVER_MS, Expiry, Header
from kvstore.namespace import Namespace
from kvstore.retention import Lifetime, Retention, TenantRule
from kvstore.seams import HeaderChange
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import TierConfig, TierSpec
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU
from tests.eventually import eventually
from tests.kvstore.conftest import BLOCK_BYTES, NAMESPACE, AmendingDict, Rig, SharedDict, wait_for_scans

ACME = NAMESPACE.with_salt("acme")
ACMES_60 = Retention(tenants={ACME.salt: TenantRule(Lifetime(hard_ttl_s=60.0))})


@pytest.fixture
def rig() -> Rig:
    return Rig(medium=AmendingDict())


def header_in(rig: Rig, number: int) -> Header:
    return Header.unpack(rig.medium.frames[rig.key(number)][0])


def soft_s(rig: Rig, number: int) -> float:
    """Return in how many seconds the header says that a block ends."""
    return header_in(rig, number).expiry.soft_ms / 1000 - rig.now_s


def use(rig: Rig, store: TieredStore, *numbers: int, ttl_s: float | None = None) -> None:
    store.lookup([rig.key(number) for number in numbers], ttl_s=ttl_s).release()
    assert store.flush(5.0)


@pytest.mark.parametrize("ttl_s", [None, 80.0])
def test_a_header_follows_when_its_end_has_moved_by_an_eighth(rig: Rig, ttl_s: float | None) -> None:
    store = rig.open(config=StoreConfig(80.0))
    rig.put(store, 1, 2, ttl_s=ttl_s)
    rig.now_s += 9.9
    use(rig, store, 1, 2, ttl_s=ttl_s)
    assert soft_s(rig, 1) == pytest.approx(70.1)
    rig.now_s += 0.1
    use(rig, store, 1, 2, ttl_s=ttl_s)
    assert (soft_s(rig, 1), soft_s(rig, 2)) == (80.0, 80.0)
    assert rig.counts(store, "disk")["amended_headers"] == 2
    use(rig, store, 1, 2, ttl_s=ttl_s)
    assert rig.counts(store, "disk")["amended_headers"] == 2, "and once for that"
    assert rig.get(store, 1)


def test_what_was_put_off_outlives_a_restart_and_is_not_counted_anew(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(80.0))
    rig.put(store, 1, 2)
    rig.now_s += 40.0
    use(rig, store, 1)
    store.close()
    rig.now_s += 50.0
    again = rig.open(config=StoreConfig(80.0))
    assert again.peek([rig.key(1), rig.key(2)]) == ("disk", None)
    rig.now_s += 30.0
    assert again.peek([rig.key(1)]) == (None,)


def test_each_header_carries_the_end_of_its_own_tier(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(80.0, {"disk": 800.0}))
    rig.put(store, 1)
    rig.now_s += 99.0
    use(rig, store, 1)
    assert soft_s(rig, 1) == pytest.approx(701.0)
    rig.now_s += 1.0
    use(rig, store, 1)
    assert soft_s(rig, 1) == 800.0


def test_one_that_never_ends_any_more_says_so(rig: Rig) -> None:
    rig.put(rig.open(config=StoreConfig(80.0)), 1)
    rig.stores[0].close()
    store = rig.open(config=StoreConfig(None))
    use(rig, store, 1)
    assert header_in(rig, 1).expiry == Expiry()


def test_a_lookup_never_waits_for_a_header_and_the_wish_is_kept_once(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(80.0))
    rig.put(store, 1, 2)
    may_write = threading.Event()
    rig.medium.fail = lambda operation, _key: None if operation != "amend" else _let(may_write)
    rig.now_s += 40.0
    for _ in range(20):
        store.lookup([rig.key(1), rig.key(2)]).release()
        rig.now_s += 20.0
    may_write.set()
    assert store.flush(5.0)
    assert soft_s(rig, 1) == 80.0 - 20.0
    assert rig.counts(store, "disk")["amended_headers"] <= 4


def _let(event: threading.Event) -> None:
    assert event.wait(10.0)


def test_a_medium_that_cannot_do_it_now_costs_no_write_and_is_asked_again(rig: Rig) -> None:
    store, numbers = rig.open(host_blocks=64, disk_blocks=64, config=StoreConfig(80.0)), range(1, 51)
    rig.put(store, *numbers)

    def broken(operation: str, _key: bytes) -> None:
        if operation == "amend":
            raise BackendError("disk", "amend", "not allowed")

    rig.medium.fail = broken
    for _ in range(5):
        rig.now_s += 40.0
        use(rig, store, *numbers)
    assert rig.counts(store, "disk")["amend_faults"] == 5, "one each time, not one for each block"
    assert rig.counts(store, "disk")["breaker_openings"] == 0
    assert rig.put(store, 51) == 1
    rig.medium.fail = lambda _operation, _key: None
    rig.now_s += 40.0
    use(rig, store, *numbers)
    assert soft_s(rig, 50) == 80.0


def test_where_too_much_is_to_be_written_headers_stay_behind(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(80.0), max_queued_writes=1)
    store.register_namespace(NAMESPACE)
    assert store.flush(5.0)
    rig.put(store, 1)
    rig.put(store, 2)
    may_write = threading.Event()
    rig.medium.fail = lambda operation, _key: None if operation != "put" else _let(may_write)
    rig.now_s += 40.0
    rig.put(store, 3, flush=False)  # being written
    eventually(lambda: store._tiers[1].pool._num_active_writes == 1)
    rig.put(store, 4, flush=False)  # and the queue is full
    store.lookup([rig.key(1)]).release()
    may_write.set()
    assert store.flush(5.0)
    assert soft_s(rig, 1) == 40.0
    use(rig, store, 1)
    assert soft_s(rig, 1) == 80.0, "with the next use"


def test_what_left_the_tier_meanwhile_is_passed_over(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(80.0))
    rig.put(store, 1, 2)
    rig.now_s += 40.0
    may_write = threading.Event()
    rig.medium.fail = lambda operation, _key: None if operation != "amend" else _let(may_write)
    store.lookup([rig.key(1), rig.key(2)]).release()
    store.evict([rig.key(2)])
    may_write.set()
    assert store.flush(5.0)
    assert rig.medium.frames.keys() == {rig.key(1)}
    assert rig.counts(store, "disk")["amend_faults"] == 0


def test_a_rule_that_comes_later_is_written_too(rig: Rig) -> None:
    store = rig.open()
    store.put(ACME, rig.key(1), b"", rig.payload(1))
    rig.put(store, 2)
    created_ms = round(rig.now_s * 1000)
    rig.now_s += 10.0
    store.set_retention(ACMES_60)
    assert store.flush(5.0)
    assert header_in(rig, 1).expiry.hard_ms == created_ms + 60_000
    assert header_in(rig, 2).expiry.hard_ms == 0
    store.set_retention(Retention())
    rig.now_s += 50.0
    assert store.peek([rig.key(1), rig.key(2)]) == (None, "host"), "no rule puts a hard end off"


def test_a_prefix_that_a_prompt_turns_out_to_have_is_written_too(rig: Rig) -> None:
    store = rig.open(
        config=StoreConfig(retention=Retention(prefixes={rig.key(3): Lifetime(hard_ttl_s=60.0)}))
    )
    rig.put(store, 1, 2)
    use(rig, store, 1, 2, 3)
    assert {header_in(rig, number).expiry.hard_ms for number in (1, 2)} == {1_060_000}


class SharedAmending(SharedDict, AmendingDict):
    pass


@pytest.mark.parametrize("how", ["stored", "computed"])
def test_a_prefix_that_a_block_turns_out_to_follow_limits_it_here_and_in_its_header(
    rig: Rig, how: str
) -> None:
    store = rig.open()
    rig.put(store, 3, ttl_s=50.0)  # what it follows is not there, so nobody knows of which prompt it is
    store.set_retention(Retention(prefixes={rig.key(1): Lifetime(hard_ttl_s=35.0)}))
    rig.now_s += 5.0
    for number, parent in ((1, b""), (2, rig.key(1)), (3, rig.key(2))):
        if how == "stored":
            store.put(NAMESPACE, rig.key(number), parent, rig.payload(number), ttl_s=50.0)
        else:
            store.device_added(rig.key(number), parent, NAMESPACE)
    eventually(lambda: header_in(rig, 3).expiry.hard_ms == 1_035_000)
    rig.now_s += 30.0
    assert rig.tiers(store, 3) == [None]


def test_on_a_shared_medium_ends_are_combined_with_what_others_wrote() -> None:
    rig = Rig(medium=SharedAmending())
    ours = rig.open(host_blocks=0, config=StoreConfig(80.0))
    rig.put(ours, 1)
    hard_ms = round(rig.now_s * 1000) + 70_000

    medium = rig.medium
    assert isinstance(medium, AmendingDict)
    medium.amend(rig.key(1), lambda header: replace(header, expiry=Expiry(header.expiry.soft_ms, hard_ms)))
    rig.now_s += 40.0
    use(rig, ours, 1)
    assert header_in(rig, 1).expiry == Expiry(round(rig.now_s * 1000) + 80_000, hard_ms)
    ours.close()


@pytest.mark.parametrize("theirs_ms", [10**15, NEVER_MS])
def test_there_a_later_end_of_others_stays(theirs_ms: int) -> None:
    rig = Rig(medium=SharedAmending())
    ours = rig.open(host_blocks=0, config=StoreConfig(80.0))
    rig.put(ours, 1)
    medium = rig.medium
    assert isinstance(medium, AmendingDict)
    medium.amend(rig.key(1), lambda header: replace(header, expiry=Expiry(theirs_ms)))
    rig.now_s += 40.0
    use(rig, ours, 1)
    assert header_in(rig, 1).expiry == Expiry(theirs_ms)
    ours.close()


class Stubborn(DiskBackend):
    """A disk whose headers stay, as if each wish to rewrite one was dropped."""

    def amend(self, key: bytes, change: HeaderChange) -> bool:  # noqa: ARG002  it is not asked
        return False


class OnDisk:
    """A store over a real folder, whose process ends and begins again; the wall clock is the test's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_s = 1000.0
        self.store: TieredStore | None = None

    def begin(self, config: StoreConfig, *, amends: bool = True) -> TieredStore:
        if self.store is not None:
            self.store.close()
        backend = (DiskBackend if amends else Stubborn)(self.folder)
        arena, tier = Arena(16 * BLOCK_BYTES, slab_bytes=4 * BLOCK_BYTES), TierConfig("disk", 1 << 20)
        spec = TierSpec(tier, backend, LeafFirstLRU(), whole_blocks_that_fit, None, LeafFirstLRU)
        clock = Clock(lambda: self.now_s, lambda: round(self.now_s * 1000))
        self.store = TieredStore([spec], arena, config, clock)
        wait_for_scans()
        return self.store

    def files(self) -> set[str]:
        return {path.name for path in (self.folder / "v1" / "blocks").rglob("*") if path.is_file()}


def put(store: TieredStore, space: Namespace, key: bytes, parent: bytes = b"") -> None:
    assert store.put(space, key, parent, memoryview(key * (BLOCK_BYTES // len(key))))
    assert store.flush(5.0)


KEYS = [bytes([number]) * 16 for number in range(1, 6)]


@pytest.mark.parametrize("amends", [True, False])
def test_a_hard_end_holds_after_restarts_whenever_its_rule_came(tmp_path: Path, amends: bool) -> None:
    disk = OnDisk(tmp_path)
    store = disk.begin(StoreConfig(1e6), amends=amends)
    put(store, ACME, KEYS[0])
    put(store, ACME, KEYS[1], KEYS[0])
    put(store, NAMESPACE, KEYS[2])
    disk.now_s += 30.0
    store.set_retention(ACMES_60)
    assert store.flush(5.0)
    disk.now_s += 29.0
    store = disk.begin(StoreConfig(1e6, retention=ACMES_60), amends=amends)
    assert store.peek(KEYS[:3]) == ("disk",) * 3
    disk.now_s += 1.0
    assert store.peek(KEYS[:3]) == (None, None, "disk")
    store.lookup([KEYS[2]]).release()
    assert store.flush(5.0)
    assert disk.files() == {KEYS[2].hex()}, "and its bytes are gone"
    store.close()


@pytest.mark.parametrize("amends", [True, False])
def test_a_rule_that_is_new_with_a_restart_holds_for_what_is_there(tmp_path: Path, amends: bool) -> None:
    disk = OnDisk(tmp_path)
    store = disk.begin(StoreConfig(1e6))
    for space, key, parent in (
        (ACME, 0, b""),
        (ACME, 1, KEYS[0]),
        (NAMESPACE, 2, b""),
        (NAMESPACE, 3, KEYS[2]),
    ):
        put(store, space, KEYS[key], parent)
    disk.now_s += 59.0
    rules = Retention(ACMES_60.others, ACMES_60.tenants, prefixes={KEYS[3]: Lifetime(hard_ttl_s=60.0)})
    store = disk.begin(StoreConfig(1e6, retention=rules), amends=amends)
    assert store.peek(KEYS[:4]) == ("disk",) * 4
    disk.now_s += 1.0
    assert store.peek(KEYS[:4]) == (None,) * 4
    while store._sweeper.sweep():
        pass
    assert store.flush(5.0)
    assert disk.files() == set()
    store.close()


def test_a_use_is_remembered_over_a_restart_and_a_lost_journal(tmp_path: Path) -> None:
    disk = OnDisk(tmp_path)
    store = disk.begin(StoreConfig(80.0))
    put(store, NAMESPACE, KEYS[0])
    disk.now_s += 40.0
    store.lookup([KEYS[0]]).release()
    assert store.flush(5.0)
    store.close()
    (tmp_path / "v1" / "journal").unlink()
    disk.now_s += 60.0
    disk.store = None
    store = disk.begin(StoreConfig(80.0))
    assert store.peek([KEYS[0]]) == ("disk",), "by the file's own header"
    disk.now_s += 20.0
    assert store.peek([KEYS[0]]) == (None,)
    out = bytearray(BLOCK_BYTES)
    assert not store.get_into(KEYS[0], memoryview(out))
    store.close()
