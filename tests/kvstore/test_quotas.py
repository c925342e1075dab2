"""Quotas: a tenant or a namespace has so many bytes of a tier, and makes way for its own."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kvstore.errors import BackendError, ConfigError
from kvstore.frame import HEADER_BYTES
from kvstore.namespace import Namespace, salt_digest
from kvstore.retention import Retention, TenantRule
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import WriteMode
from tests.kvstore.conftest import BLOCK_BYTES, NAMESPACE, Rig

ON_DISK = BLOCK_BYTES + HEADER_BYTES


def quotas(tier: str, others: int | None = None, **blocks: int) -> Retention:
    """Return rules under which each tenant may have so many blocks of a tier."""
    unit = BLOCK_BYTES if tier == "host" else ON_DISK
    named = {salt_digest(name): TenantRule(quotas={tier: unit * num}) for name, num in blocks.items()}
    return Retention(TenantRule(quotas={} if others is None else {tier: unit * others}), named)


def put(rig: Rig, store: TieredStore, salt: str, *numbers: int) -> int:
    """Store a chain of a tenant's blocks, and see it written; returns how many were taken."""
    namespace = NAMESPACE.with_salt(salt)
    parents = [b"", *(rig.key(number) for number in numbers)]
    taken = [
        store.put(namespace, rig.key(number), parent, rig.payload(number))
        for number, parent in zip(numbers, parents, strict=False)
    ]
    assert store.flush(5.0)
    return sum(taken)


def where(rig: Rig, store: TieredStore, *numbers: int) -> list[str | None]:
    """Return each block's fastest tier, without any use of it."""
    return list(store.peek([rig.key(number) for number in numbers]))


def usage(store: TieredStore, tier: str) -> Mapping[str, tuple[int, int]]:
    """Return (blocks, blocks allowed) of each tenant with a quota in a tier."""
    unit = BLOCK_BYTES if tier == "host" else ON_DISK
    held = next(entry for entry in store.statistics().tiers if entry.name == tier)
    return {group.name: (group.num_blocks, group.quota_bytes // unit) for group in held.groups}


def test_a_tenant_over_its_quota_evicts_its_own_blocks_first(rig: Rig) -> None:
    store = rig.open(host_blocks=8, disk_blocks=0, config=StoreConfig(retention=quotas("host", greedy=3)))
    put(rig, store, "modest", 0, 1)
    put(rig, store, "greedy", 10, 11, 12)
    put(rig, store, "greedy", 20)
    assert rig.tiers(store, 0, 1) == ["host"] * 2
    assert rig.tiers(store, 10, 11, 12, 20) == ["host", "host", None, "host"], "leaf first, and its own"
    assert usage(store, "host") == {salt_digest("greedy"): (3, 3)}


def test_what_has_no_quota_is_bounded_by_the_tier_alone(rig: Rig) -> None:
    store = rig.open(host_blocks=4, disk_blocks=0, config=StoreConfig(retention=quotas("host", greedy=2)))
    put(rig, store, "greedy", 10, 11)
    put(rig, store, "modest", 0, 1, 2, 3)
    assert rig.tiers(store, 0, 1, 2, 3) == ["host"] * 4
    assert usage(store, "host") == {salt_digest("greedy"): (0, 2)}


def test_each_tenant_that_is_not_named_has_the_quota_of_the_others(rig: Rig) -> None:
    store = rig.open(host_blocks=8, disk_blocks=0, config=StoreConfig(retention=quotas("host", others=2)))
    for number, salt in enumerate(["", "one", "two"]):
        put(rig, store, salt, *range(10 * number, 10 * number + 3))
    assert usage(store, "host") == {"": (2, 2), salt_digest("one"): (2, 2), salt_digest("two"): (2, 2)}


def test_a_namespaces_quota_is_within_its_tenants(rig: Rig) -> None:
    namespace = NAMESPACE.with_salt("one")
    rules = Retention(
        tenants={namespace.salt: TenantRule(quotas={"host": 4 * BLOCK_BYTES})},
        namespaces={namespace.digest: {"host": 2 * BLOCK_BYTES}},
    )
    store = rig.open(host_blocks=8, disk_blocks=0, config=StoreConfig(retention=rules))
    put(rig, store, "one", 0, 1, 2)
    other = Namespace("other weights", "{}", "float32", "float32", block_tokens=16).with_salt("one")
    for number in (10, 11, 12):
        store.put(other, rig.key(number), b"", rig.payload(number))
    assert usage(store, "host") == {namespace.digest.hex(): (1, 2), namespace.salt: (4, 4)}


@pytest.mark.parametrize("blocks", [0, 0.5])
def test_a_tier_refuses_a_block_larger_than_its_quota_and_others_take_it(rig: Rig, blocks: float) -> None:
    rules = Retention(TenantRule(quotas={"host": int(blocks * BLOCK_BYTES)}))
    store = rig.open(config=StoreConfig(retention=rules))
    put(rig, store, "one", 0, 1)
    assert rig.tiers(store, 0, 1) == ["disk"] * 2
    counts = rig.counts(store, "host")
    assert counts["over_quota"] == 2
    assert rig.counts(store, "disk")["over_quota"] == 0


def test_what_memory_has_no_room_for_goes_at_once_where_it_goes_when_memory_evicts_it(rig: Rig) -> None:
    config = StoreConfig(retention=quotas("host", one=0))
    store = rig.open(write_mode=WriteMode.BACK, config=config)
    put(rig, store, "one", 0)
    put(rig, store, "two", 10)
    assert where(rig, store, 0, 10) == ["disk", "host"]
    assert set(rig.medium.frames) == {rig.key(0)}


def test_a_tier_refuses_a_block_when_all_of_its_group_is_in_use(rig: Rig) -> None:
    store = rig.open(host_blocks=8, disk_blocks=0, config=StoreConfig(retention=quotas("host", greedy=2)))
    put(rig, store, "greedy", 0, 1)
    hit = store.lookup([rig.key(0), rig.key(1)])
    assert put(rig, store, "greedy", 10) == 0
    assert rig.counts(store, "host")["over_quota"] == 1
    hit.release()
    assert put(rig, store, "greedy", 10) == 1


def test_a_quota_below_what_is_there_loses_nothing_until_its_tenant_stores(rig: Rig) -> None:
    store = rig.open(host_blocks=8, disk_blocks=0)
    put(rig, store, "one", 0, 1, 2, 3)
    store.set_retention(quotas("host", one=2))
    put(rig, store, "two", 10, 11)
    assert rig.tiers(store, 0, 1, 2, 3) == ["host"] * 4
    put(rig, store, "one", 4)
    assert rig.tiers(store, 0, 1, 2, 3, 4) == ["host", None, None, None, "host"]


def test_when_a_tier_is_full_groups_over_their_quota_go_first(rig: Rig) -> None:
    store = rig.open(host_blocks=4, disk_blocks=0)
    put(rig, store, "old", 20)
    put(rig, store, "one", 0, 1, 2)
    store.set_retention(quotas("host", one=1))
    put(rig, store, "two", 10, 11)
    assert where(rig, store, 20, 10, 11) == ["host"] * 3, "the oldest of all stays"
    assert where(rig, store, 0, 1, 2) == ["host", None, None]
    put(rig, store, "two", 12)
    assert where(rig, store, 20) == [None], "within its quota everybody is equal again"


def test_a_quota_that_is_lifted_bounds_nothing_any_more(rig: Rig) -> None:
    store = rig.open(host_blocks=8, disk_blocks=0, config=StoreConfig(retention=quotas("host", one=1)))
    put(rig, store, "one", 0, 10)
    store.set_retention(Retention())
    put(rig, store, "one", 20, 21, 22)
    assert rig.tiers(store, 10, 20, 21, 22) == ["host"] * 4
    assert usage(store, "host") == {}


def test_what_a_medium_keeps_over_a_restart_counts(rig: Rig) -> None:
    store = rig.open(host_blocks=0)
    put(rig, store, "one", 0, 1, 2, 3)
    put(rig, store, "two", 10)
    store.close()
    again = rig.open(host_blocks=0, config=StoreConfig(retention=quotas("disk", one=2)))
    assert usage(again, "disk") == {salt_digest("one"): (2, 2)}
    assert rig.tiers(again, 0, 1, 2, 3, 10).count("disk") == 3
    assert len(rig.medium.frames) == 3, "what does not fit goes, as for the budget"


def test_a_namespace_whose_manifest_is_lost_counts_from_its_first_request_on(rig: Rig) -> None:
    store = rig.open(host_blocks=0)
    put(rig, store, "one", 0, 1, 2)
    store.close()
    rig.medium.kept_manifests.clear()
    again = rig.open(host_blocks=0, config=StoreConfig(retention=quotas("disk", one=2)))
    assert rig.tiers(again, 0, 1, 2) == ["disk"] * 3
    again.register_namespace(NAMESPACE.with_salt("one"))
    assert usage(again, "disk") == {salt_digest("one"): (3, 2)}
    put(rig, again, "one", 10)
    assert usage(again, "disk") == {salt_digest("one"): (2, 2)}


def test_a_block_that_cannot_be_deleted_counts_in_its_group_until_it_can(rig: Rig) -> None:
    store = rig.open(host_blocks=0, disk_blocks=8, config=StoreConfig(retention=quotas("disk", one=2)))
    put(rig, store, "one", 0)
    put(rig, store, "one", 10)

    def fail(operation: str, _key: bytes) -> None:
        if operation == "delete":
            raise BackendError("disk", operation, "out of order")

    rig.medium.fail = fail
    put(rig, store, "one", 20)
    assert usage(store, "disk") == {salt_digest("one"): (2, 2)}, "one held, one stuck, the newcomer dropped"
    store.check()
    rig.medium.fail = lambda _operation, _key: None
    put(rig, store, "two", 30)
    store.check()
    assert usage(store, "disk") == {salt_digest("one"): (1, 2)}


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        (Retention(TenantRule(quotas={"tape": 1})), "'tape' is not one of host, disk"),
        (Retention(namespaces={b"x" * 16: {"tape": 1}}), "'tape' is not one of host, disk"),
        (Retention(tenants={"": TenantRule(quotas={"device": 1})}), "the engine's own pool"),
        (Retention(namespaces={b"x" * 16: {"disk": -1}}), "must not be negative"),
    ],
)
def test_quotas_that_cannot_be_are_refused_and_the_old_rules_hold(
    rig: Rig, rules: Retention, told: str
) -> None:
    store = rig.open(disk_blocks=8, config=StoreConfig(retention=quotas("host", one=1)))
    with pytest.raises(ConfigError, match=told):
        store.set_retention(rules)
    put(rig, store, "one", 0, 10)
    assert usage(store, "host") == {salt_digest("one"): (1, 1)}


def test_a_tenant_cannot_have_a_negative_quota() -> None:
    with pytest.raises(ConfigError, match="must not be negative"):
        TenantRule(quotas={"disk": -1})
