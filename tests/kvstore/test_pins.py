"""Pins: a prefix stays until a time, at the cost of its tenant's pin budget."""

from __future__ import annotations

import math

import pytest

from kvstore.absences import Cause
from kvstore.errors import BackendError, ConfigError, PinBudgetError
from kvstore.frame import HEADER_BYTES, Header
from kvstore.namespace import salt_digest
from kvstore.pins import Pin, TierPins
from kvstore.retention import MAX_LIFETIME_S, Lifetime, Retention, TenantRule
from kvstore.store import StoreConfig, TieredStore
from kvstore.upkeep import Pinning
from tests.eventually import eventually
from tests.kvstore.conftest import BLOCK_BYTES, NAMESPACE, AmendingDict, Rig, SharedDict

ON_DISK = BLOCK_BYTES + HEADER_BYTES
PLENTY = Retention(TenantRule(pin_bytes=1 << 20))


class SharedAmendingDict(AmendingDict, SharedDict):
    """A medium that rewrites headers in place, and that other processes write to as well."""


def opened(rig: Rig, host_blocks: int = 8, disk_blocks: int = 0, rules: Retention = PLENTY) -> TieredStore:
    config = StoreConfig(retention=rules)
    return rig.open(host_blocks=host_blocks, disk_blocks=disk_blocks, config=config)


def keys(rig: Rig, *numbers: int) -> list[bytes]:
    return [rig.key(number) for number in numbers]


def where(rig: Rig, store: TieredStore, *numbers: int) -> list[str | None]:
    """Return each block's fastest tier, without any use of it."""
    return list(store.peek(keys(rig, *numbers)))


def pinned_bytes(store: TieredStore) -> int:
    """Return what is charged to the tenant without a salt."""
    return {told.tenant: told.pinned_bytes for told in store.statistics().pins}.get("", 0)


def test_a_pinned_prefix_outlives_whatever_is_stored_and_is_ordinary_afterwards(rig: Rig) -> None:
    store = opened(rig)
    rig.put(store, 0, 1, 2)
    told = store.pin(keys(rig, 0, 1, 2), for_s=60.0)
    assert (told.num_blocks, told.charged_bytes, told.absent) == ({"host": 3}, 3 * BLOCK_BYTES, ())
    for start in range(10, 90, 4):
        rig.put(store, *range(start, start + 4))
    assert where(rig, store, 0, 1, 2) == ["host"] * 3
    rig.now_s += 60.0
    assert store.pins() == []
    for start in range(100, 120, 4):
        rig.put(store, *range(start, start + 4))
    assert where(rig, store, 0, 1, 2) == [None] * 3
    assert pinned_bytes(store) == 0


def test_a_pin_holds_where_it_was_asked_for(rig: Rig) -> None:
    store = opened(rig, host_blocks=4, disk_blocks=16)
    rig.put(store, 0, 1)
    told = store.pin(keys(rig, 0, 1), until_s=rig.now_s + 60.0, tiers=["disk"])
    assert (told.num_blocks, told.charged_bytes) == ({"disk": 2}, 2 * ON_DISK)
    rig.put(store, 10, 11, 12, 13)
    assert where(rig, store, 0, 1) == ["disk"] * 2
    assert store.pins() == [Pinning("", "disk", told.until_ms, 2, 2 * ON_DISK)]


def test_what_is_not_there_is_told_and_pinned_when_the_prefix_was_warmed(rig: Rig) -> None:
    store = opened(rig)
    rig.put(store, 0)
    first = store.pin(keys(rig, 0, 1, 2), for_s=60.0)
    assert (first.num_blocks, first.absent) == ({"host": 1}, tuple(keys(rig, 1, 2)))
    rig.put(store, 0, 1, 2)
    second = store.pin(keys(rig, 0, 1, 2), for_s=60.0)
    assert (second.num_blocks, second.charged_bytes, second.absent) == ({"host": 3}, 2 * BLOCK_BYTES, ())
    assert pinned_bytes(store) == 3 * BLOCK_BYTES


def test_the_last_key_of_a_prefix_names_all_of_it(rig: Rig) -> None:
    store = opened(rig)
    rig.put(store, 0, 1, 2)
    assert store.pin(keys(rig, 2), for_s=60.0).num_blocks == {"host": 3}, "what it follows would stay unpaid"
    assert store.unpin(keys(rig, 2)) == 3


def test_a_block_that_is_pinned_twice_stays_to_the_later_end_and_is_charged_once(rig: Rig) -> None:
    store = opened(rig)
    rig.put(store, 0)
    late = store.pin(keys(rig, 0), for_s=60.0)
    early = store.pin(keys(rig, 0), for_s=10.0)
    assert early.charged_bytes == 0
    assert [(pin.until_ms, pin.charged_bytes) for pin in store.pins()] == [(late.until_ms, BLOCK_BYTES)]


def test_unpin_leaves_what_another_pinned_prefix_shares(rig: Rig) -> None:
    store = opened(rig)
    rig.put(store, 0, 1)
    rig.put(store, 0, 2)
    store.pin(keys(rig, 0, 1), for_s=60.0)
    store.pin(keys(rig, 0, 2), for_s=30.0)
    assert store.unpin(keys(rig, 0, 1)) == 1
    assert pinned_bytes(store) == 2 * BLOCK_BYTES
    assert store.unpin(keys(rig, 0, 2)) == 2
    assert store.unpin(keys(rig, 0, 2)) == 0
    assert pinned_bytes(store) == 0


def test_beyond_the_budget_nothing_is_pinned_and_the_error_says_what_is_left(rig: Rig) -> None:
    store = opened(rig, rules=Retention(TenantRule(pin_bytes=3 * BLOCK_BYTES)))
    rig.put(store, 0, 1)
    rig.put(store, 10, 11)
    store.pin(keys(rig, 0, 1), for_s=60.0)
    with pytest.raises(PinBudgetError, match="pin_bytes") as caught:
        store.pin(keys(rig, 10, 11), for_s=60.0)
    assert (caught.value.wanted_bytes, caught.value.left_bytes) == (2 * BLOCK_BYTES, BLOCK_BYTES)
    assert pinned_bytes(store) == 2 * BLOCK_BYTES
    store.unpin(keys(rig, 0, 1))
    assert store.pin(keys(rig, 10, 11), for_s=60.0).charged_bytes == 2 * BLOCK_BYTES


def test_without_a_budget_nothing_may_be_pinned(rig: Rig) -> None:
    store = opened(rig, rules=Retention())
    rig.put(store, 0)
    with pytest.raises(PinBudgetError):
        store.pin(keys(rig, 0), for_s=60.0)


def test_at_most_half_of_a_tier_is_pinned(rig: Rig) -> None:
    store = opened(rig, host_blocks=4, disk_blocks=16)
    rig.put(store, 0, 1, 2)
    with pytest.raises(PinBudgetError, match="half of the tier host") as caught:
        store.pin(keys(rig, 0, 1, 2), for_s=60.0)
    assert (caught.value.wanted_bytes, caught.value.left_bytes) == (3 * BLOCK_BYTES, 2 * BLOCK_BYTES)
    assert store.pins() == [], "not in the disk either: all or nothing"


def test_a_budget_below_what_is_pinned_lets_it_stay_and_nothing_more_in(rig: Rig) -> None:
    store = opened(rig)
    rig.put(store, 0, 1)
    store.pin(keys(rig, 0), for_s=60.0)
    store.set_retention(Retention())
    assert pinned_bytes(store) == BLOCK_BYTES
    with pytest.raises(PinBudgetError) as caught:
        store.pin(keys(rig, 1), for_s=60.0)
    assert caught.value.left_bytes == 0


def test_what_is_pinned_counts_in_a_quota_and_never_makes_way_for_it(rig: Rig) -> None:
    rules = Retention(TenantRule(quotas={"host": 2 * BLOCK_BYTES}, pin_bytes=1 << 20))
    store = opened(rig, rules=rules)
    rig.put(store, 0, 1)
    store.pin(keys(rig, 0, 1), for_s=60.0)
    assert rig.put(store, 10) == 0
    assert where(rig, store, 0, 1) == ["host"] * 2
    assert rig.counts(store, "host")["over_quota"] == 1


def test_soft_ends_wait_for_the_pin_and_hard_ones_do_not(rig: Rig) -> None:
    rules = Retention(
        TenantRule(pin_bytes=1 << 20),
        {salt_digest("brief"): TenantRule(Lifetime(hard_ttl_s=20.0), pin_bytes=1 << 20)},
    )
    store = opened(rig, rules=rules)
    rig.put(store, 0, ttl_s=10.0)
    brief = NAMESPACE.with_salt("brief")
    store.put(brief, rig.key(10), b"", rig.payload(10))
    store.pin(keys(rig, 0), for_s=60.0)
    store.pin(keys(rig, 10), for_s=60.0)
    rig.now_s += 30.0
    assert where(rig, store, 0, 10) == ["host", None]
    store.lookup([]).release()
    assert store.why_absent(rig.key(10)).cause is Cause.EXPIRED
    assert [pin.tenant for pin in store.pins()] == [""], "what has ended gives its charge back"
    rig.now_s += 30.0
    assert where(rig, store, 0) == [None]


@pytest.mark.parametrize("way", ["evict", "clear", "quarantine", "corrupt"])
def test_a_pinned_block_that_leaves_gives_its_charge_back(rig: Rig, way: str) -> None:
    store = opened(rig, host_blocks=0, disk_blocks=8)
    rig.put(store, 0)
    store.pin(keys(rig, 0), for_s=60.0)
    if way == "evict":
        store.evict(keys(rig, 0))
    elif way == "clear":
        store.clear()
    elif way == "quarantine":
        store.quarantine(rig.key(0))
    else:
        header, _ = rig.medium.frames[rig.key(0)]
        rig.medium.frames[rig.key(0)] = header, b"\1" * BLOCK_BYTES
        assert not rig.get(store, 0)
    assert store.flush(5.0)
    assert pinned_bytes(store) == 0
    assert store.pins() == []


@pytest.mark.parametrize("tier_blocks", [(0, 8), (8, 0)])
def test_a_block_in_front_of_a_pinned_one_that_comes_later_stays_as_long(
    rig: Rig, tier_blocks: tuple[int, int]
) -> None:
    store = opened(rig, *tier_blocks)
    rig.put(store, 0, 1)
    store.pin(keys(rig, 0, 1), for_s=60.0)
    store.evict(keys(rig, 0))
    assert store.flush(5.0)
    rig.put(store, 0)
    for number in range(10, 30):
        rig.put(store, number)
    assert None not in where(rig, store, 0, 1), "no parent before its resident child"


def test_pins_that_are_over_cost_no_scan_and_free_as_many_as_are_needed(rig: Rig) -> None:
    store = rig.open(host_blocks=400, disk_blocks=0, config=StoreConfig(retention=PLENTY))
    rig.put(store, *range(200))
    store.pin(keys(rig, 199), for_s=10.0)
    rig.put(store, *range(300, 500))
    assert len(store.pins()) == 1
    rig.now_s += 10.0
    hit = store.lookup(keys(rig, *range(300, 500)))
    assert rig.put(store, *range(600, 800)) == 200
    hit.release()


def test_a_pin_survives_a_restart_where_the_medium_keeps_headers(rig: Rig) -> None:
    rig.medium = AmendingDict()
    store = opened(rig, host_blocks=0, disk_blocks=8)
    rig.put(store, 0, 1)
    told = store.pin(keys(rig, 0, 1), for_s=60.0)
    assert store.flush(5.0)
    store.close()
    again = opened(rig, host_blocks=0, disk_blocks=8)
    assert again.pins() == [Pinning("", "disk", told.until_ms, 2, 2 * ON_DISK)]
    for number in range(10, 30):
        rig.put(again, number)
    assert where(rig, again, 0, 1) == ["disk"] * 2
    again.unpin(keys(rig, 0, 1))
    assert again.flush(5.0)
    again.close()
    assert opened(rig, host_blocks=0, disk_blocks=8).pins() == []


def test_a_pin_on_a_shared_medium_is_found_with_its_block(rig: Rig) -> None:
    rig.medium = SharedAmendingDict()
    store = opened(rig, host_blocks=0, disk_blocks=8)
    rig.put(store, 0)
    told = store.pin(keys(rig, 0), for_s=60.0)
    assert store.flush(5.0)
    other = opened(rig, host_blocks=0, disk_blocks=8)
    inquiry = other.inquire(keys(rig, 0), rig.now_s + 5.0)
    assert inquiry is not None
    assert inquiry.wait(5.0)
    assert [(pin.tier, pin.until_ms) for pin in other.pins()] == [("disk", told.until_ms)]
    for number in range(10, 30):
        rig.put(other, number)
    assert rig.tiers(other, 0) == ["disk"]


def test_a_restart_with_a_smaller_budget_restores_what_fits(rig: Rig) -> None:
    rig.medium = AmendingDict()
    store = opened(rig, host_blocks=0, disk_blocks=8)
    rig.put(store, 0, 1, 2)
    store.pin(keys(rig, 0, 1, 2), for_s=60.0)
    assert store.flush(5.0)
    store.close()
    again = opened(rig, 0, 8, Retention(TenantRule(pin_bytes=2 * ON_DISK)))
    assert pinned_bytes(again) == 2 * ON_DISK
    assert where(rig, again, 0, 1, 2) == ["disk"] * 3, "the rest is ordinary"


def test_a_pin_that_could_not_be_written_is_tried_again(rig: Rig) -> None:
    rig.medium = AmendingDict()
    store = opened(rig, host_blocks=0, disk_blocks=8)
    rig.put(store, 0)
    is_broken = True

    def fail(operation: str, _key: bytes) -> None:
        if operation == "amend" and is_broken:
            raise BackendError("disk", operation, "out of order")

    rig.medium.fail = fail
    told = store.pin(keys(rig, 0), for_s=60.0)
    assert store.flush(5.0)
    is_broken = False
    eventually(lambda: Header.unpack(rig.medium.frames[rig.key(0)][0]).pinned_ms == told.until_ms)


def test_one_whose_header_cannot_be_written_keeps_no_other_from_its_own(rig: Rig) -> None:
    rig.medium = AmendingDict()
    store = opened(rig, host_blocks=0, disk_blocks=16)

    def fail(operation: str, key: bytes) -> None:
        if operation == "amend" and rig.number(key) < 2:
            raise BackendError("disk", operation, "not this one")

    rig.medium.fail = fail
    for number in range(6):
        rig.put(store, number)
        store.pin(keys(rig, number), for_s=60.0)

    def are_written() -> bool:
        headers = [Header.unpack(rig.medium.frames[rig.key(number)][0]) for number in range(6)]
        return [header.pinned_ms > 0 for header in headers] == [False] * 2 + [True] * 4

    eventually(are_written)


def test_parents_in_a_circle_are_pinned_and_let_go_all_the_same(rig: Rig) -> None:
    store = opened(rig)
    for number in range(2):
        store.put(rig.namespace, rig.key(number), rig.key(1 - number), rig.payload(number))
    store.put(rig.namespace, rig.key(2), rig.key(2), rig.payload(2))
    assert store.pin(keys(rig, 0, 2), for_s=60.0).num_blocks == {"host": 3}
    store.unpin(keys(rig, 0, 2))
    rig.now_s += 60.0
    assert store.pins() == []
    store.check()


@pytest.mark.parametrize(
    ("until", "told"),
    [
        ({}, "one of both"),
        ({"for_s": 1.0, "until_s": 2000.0}, "one of both"),
        ({"for_s": 0.0}, "after now"),
        ({"for_s": -1.0}, "after now"),
        ({"for_s": math.nan}, "after now"),
        ({"for_s": math.inf}, "after now"),
        ({"for_s": MAX_LIFETIME_S + 1}, "within"),
        ({"until_s": 999.0}, "after now"),
        ({"until_s": math.nan}, "after now"),
        ({"until_s": 1001.0 + MAX_LIFETIME_S}, "within"),
    ],
)
def test_a_pin_that_is_over_or_beyond_a_century_is_refused(
    rig: Rig, until: dict[str, float], told: str
) -> None:
    store = opened(rig)
    rig.put(store, 0)
    with pytest.raises(ConfigError, match=told):
        store.pin(keys(rig, 0), **until)  # type: ignore[arg-type]  # by name
    assert store.pins() == []


def test_a_pin_needs_blocks_of_one_known_tenant_and_tiers_that_are_there(rig: Rig) -> None:
    store = opened(rig)
    rig.put(store, 0)
    store.put(NAMESPACE.with_salt("other"), rig.key(10), b"", rig.payload(10))
    with pytest.raises(ConfigError, match="at least one"):
        store.pin([], for_s=1.0)
    with pytest.raises(ConfigError, match="'tape' is not one of host"):
        store.pin(keys(rig, 0), for_s=1.0, tiers=["tape"])
    with pytest.raises(ConfigError, match="'device' is not one of host"):
        store.pin(keys(rig, 0), for_s=1.0, tiers=["device"])
    with pytest.raises(ConfigError, match="several tenants"):
        store.pin(keys(rig, 0, 10), for_s=1.0)
    with pytest.raises(ConfigError, match="'tape'"):
        store.unpin(keys(rig, 0), tiers=["tape"])
    assert store.pin(keys(rig, 77), for_s=1.0).absent == tuple(keys(rig, 77))
    assert store.pins() == []


def test_a_block_of_a_tenant_that_nobody_knows_cannot_be_pinned(rig: Rig) -> None:
    store = opened(rig, host_blocks=0, disk_blocks=8)
    rig.put(store, 0)
    store.close()
    rig.medium.kept_manifests.clear()
    again = opened(rig, host_blocks=0, disk_blocks=8)
    with pytest.raises(ConfigError, match="register its namespace"):
        again.pin(keys(rig, 0), for_s=1.0)
    again.register_namespace(NAMESPACE)
    assert again.pin(keys(rig, 0), for_s=1.0).num_blocks == {"disk": 1}


def test_ends_that_are_put_off_again_and_again_take_no_room() -> None:
    pins = TierPins()
    for number in range(10_000):
        pins.add(b"key", Pin(b"", number, "", 1))
    assert len(pins._ends) <= 65
    pins.check()
