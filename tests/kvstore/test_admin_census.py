"""What administration tells of blocks, namespaces and prefixes: exact values."""

from __future__ import annotations

import pytest

from kvstore.admin.selection import BlockFilter
from kvstore.errors import RequestError
from kvstore.namespace import Namespace
from kvstore.retention import Retention, TenantRule
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import WriteMode
from tests.kvstore.conftest import BLOCK_BYTES, NAMESPACE, DictBackend, Rig

DAY_MS = 24 * 3600 * 1000
ON_DISK = BLOCK_BYTES + 192
ACME = NAMESPACE.with_salt("acme")


def keys_of(store: TieredStore, wanted: BlockFilter) -> list[int]:
    return [view.key[-1] for view in store.admin.blocks(wanted, limit=1000).blocks]


def put(store: TieredStore, rig: Rig, namespace: Namespace, *numbers: int) -> None:
    parents = [b"", *(rig.key(number) for number in numbers)]
    for number, parent in zip(numbers, parents, strict=False):
        store.put(namespace, rig.key(number), parent, rig.payload(number))
    assert store.flush(5.0)


def test_a_block_with_all_there_is_to_tell(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(retention=Retention(TenantRule(pin_bytes=1 << 20))))
    store.put(NAMESPACE, rig.key(1), b"", rig.payload(1), first_token=0)
    store.put(NAMESPACE, rig.key(2), rig.key(1), rig.payload(2), first_token=16, ttl_s=60.0)
    assert store.flush(5.0)
    store.pin([rig.key(1)], for_s=10.0, tiers=["disk"])
    rig.now_s += 5.0
    hit = store.lookup([rig.key(1)])
    view = store.admin.block(rig.key(1))
    assert view is not None
    assert (view.key, view.parent, view.namespace, view.tenant) == (rig.key(1), b"", NAMESPACE.digest, "")
    assert (view.raw_bytes, view.block_tokens, view.first_token) == (BLOCK_BYTES, 16, 0)
    assert (view.tiers, view.unreadable) == (("host", "disk"), ())
    assert view.nbytes == {"host": BLOCK_BYTES, "disk": ON_DISK}
    assert (view.created_ms, view.used_ms, view.hit_ms) == (1_000_000, 1_005_000, 1_005_000)
    assert view.ends_ms == {"host": 1_005_000 + DAY_MS, "disk": 1_005_000 + DAY_MS}
    assert view.hard_ms is None
    assert view.pinned_until_ms == {"disk": 1_010_000}
    assert (view.num_holds, view.num_hits, view.is_quarantined) == (1, 1, False)
    hit.release()
    after = store.admin.block(rig.key(2))
    assert after is not None
    assert (after.parent, after.first_token, after.num_holds, after.num_hits) == (rig.key(1), 16, 0, 0)
    assert after.ends_ms == {"host": 1_060_000, "disk": 1_060_000}
    assert store.admin.block(rig.key(3)) is None


def test_what_has_ended_is_not_there(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1, ttl_s=1.0)
    rig.put(store, 2, ttl_s=10.0)
    rig.now_s += 1.0
    assert store.admin.block(rig.key(1)) is None
    assert keys_of(store, BlockFilter()) == [2]


def test_what_the_engines_pool_alone_has_is_told(rig: Rig) -> None:
    store = rig.open()
    store.device_added(rig.key(7), b"", NAMESPACE)
    view = store.admin.block(rig.key(7))
    assert view is not None
    assert (view.tiers, view.nbytes, view.tenant) == (("device",), {}, "")
    assert keys_of(store, BlockFilter(tier="device")) == [7]
    (space,) = store.admin.namespaces()
    assert (space.num_blocks, space.nbytes) == ({"device": 1}, {})
    store.device_removed(rig.key(7))


def test_pages_are_in_key_order_and_stable_while_blocks_come_and_go(rig: Rig) -> None:
    store = rig.open(host_blocks=16)
    put(store, rig, NAMESPACE, *range(0, 20, 2))
    first = store.admin.blocks(limit=4)
    assert [view.key[-1] for view in first.blocks] == [0, 2, 4, 6]
    assert (first.next, first.total) == (rig.key(6), 10)
    store.evict([rig.key(6), rig.key(8)])
    put(store, rig, NAMESPACE, 1, 7)
    second = store.admin.blocks(after=first.next, limit=4)
    assert [view.key[-1] for view in second.blocks] == [7, 10, 12, 14]
    assert second.total == 10
    third = store.admin.blocks(after=second.next, limit=4)
    assert ([view.key[-1] for view in third.blocks], third.next) == ([16, 18], None)
    assert store.admin.blocks(after=rig.key(18)).blocks == ()


def test_pages_of_many_blocks_hold_each_of_them_once(rig: Rig) -> None:
    store = rig.open()
    for number in range(1000):
        store.device_added(rig.key(number), rig.key(number - 1) if number % 10 else b"", NAMESPACE)
    keys, after = list[bytes](), None
    while True:
        page = store.admin.blocks(after=after, limit=300)
        assert page.total == 1000
        keys += [view.key for view in page.blocks]
        if (after := page.next) is None:
            break
    assert keys == [rig.key(number) for number in range(1000)]
    assert store.admin.blocks(BlockFilter(prefix=rig.key(500))).total == 10
    assert len(store.admin.prefixes("recent", limit=200)) == 100


def test_filters(rig: Rig) -> None:
    store = rig.open(
        host_blocks=3, write_mode=WriteMode.BACK,
        config=StoreConfig(retention=Retention(TenantRule(pin_bytes=1 << 20))),
    )  # fmt: skip
    other = Namespace("weighty", "{}", "float32", "float32", block_tokens=16, label="tiny")
    put(store, rig, NAMESPACE, 1, 2)
    rig.now_s += 100.0
    put(store, rig, ACME, 3)
    put(store, rig, other, 4)  # evicts 2, which nothing follows
    assert store.flush(5.0)
    store.pin([rig.key(3)], for_s=50.0)
    assert keys_of(store, BlockFilter()) == [1, 2, 3, 4]
    assert keys_of(store, BlockFilter(tier="disk")) == [2]
    assert keys_of(store, BlockFilter(tier="host")) == [1, 3, 4]
    assert keys_of(store, BlockFilter(tenant="")) == [1, 2, 4]
    assert keys_of(store, BlockFilter(tenant=ACME.salt)) == [3]
    assert keys_of(store, BlockFilter(namespace=other.digest)) == [4]
    assert keys_of(store, BlockFilter(model="tiny")) == [4]
    assert keys_of(store, BlockFilter(model="weights")) == [1, 2, 3]
    assert keys_of(store, BlockFilter(model="nobody's")) == []
    assert keys_of(store, BlockFilter(prefix=rig.key(1))) == [1, 2]
    assert keys_of(store, BlockFilter(prefix=rig.key(1), keys=(rig.key(2), rig.key(4)))) == [2]
    assert keys_of(store, BlockFilter(min_age_s=100.0)) == [1, 2]
    assert keys_of(store, BlockFilter(max_age_s=99.0)) == [3, 4]
    store.lookup([rig.key(1)]).release()
    assert keys_of(store, BlockFilter(min_idle_s=1.0)) == [2]
    assert keys_of(store, BlockFilter(max_idle_s=1.0)) == [1, 3, 4]
    assert keys_of(store, BlockFilter(is_pinned=True)) == [3]
    assert keys_of(store, BlockFilter(is_pinned=False)) == [1, 2, 4]
    assert keys_of(store, BlockFilter(keys=(rig.key(4), rig.key(4), rig.key(9)))) == [4]
    rig.now_s += 50.0
    assert keys_of(store, BlockFilter(is_pinned=True)) == []


@pytest.mark.parametrize(
    ("wrong", "param"), [({"min_age_s": -1.0}, "min_age_s"), ({"max_idle_s": float("nan")}, "max_idle_s"),
    ({"model": ""}, "model")],
)  # fmt: skip
def test_filters_that_cannot_be(wrong: dict[str, float], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        BlockFilter(**wrong)  # type: ignore[arg-type]  # that is what is tested
    assert caught.value.param == param


def test_a_tier_that_is_not_there(rig: Rig) -> None:
    with pytest.raises(RequestError, match="'tape' is not one of device, host, disk"):
        rig.open().admin.blocks(BlockFilter(tier="tape"))


def test_namespaces_add_up_to_what_the_tiers_hold(rig: Rig) -> None:
    store = rig.open()
    put(store, rig, NAMESPACE, 1, 2)
    rig.now_s += 1.0
    put(store, rig, ACME, 3)
    store.lookup([rig.key(1), rig.key(2)]).release()
    rig.now_s += 1.0
    store.lookup([rig.key(1)]).release()
    told = {view.digest: view for view in store.admin.namespaces()}
    assert list(told) == sorted([NAMESPACE.digest, ACME.digest])
    ours, acmes = told[NAMESPACE.digest], told[ACME.digest]
    assert (ours.namespace, ours.tenant, acmes.tenant) == (NAMESPACE, "", ACME.salt)
    assert ours.num_blocks == {"host": 2, "disk": 2}
    assert ours.nbytes == {"host": 2 * BLOCK_BYTES, "disk": 2 * ON_DISK}
    assert (ours.hit_ms, ours.used_ms, ours.num_hits) == (1_002_000, 1_002_000, 3)
    assert (acmes.hit_ms, acmes.used_ms, acmes.num_hits) == (0, 1_001_000, 0)
    assert store.admin.namespaces(tenant=ACME.salt) == [acmes]
    for tier in store.statistics().tiers[1:]:
        assert sum(view.nbytes[tier.name] for view in told.values()) == tier.used_bytes


def test_a_namespace_is_known_by_its_manifest_after_a_restart(rig: Rig) -> None:
    rig.put(rig.open(), 1)
    rig.stores[0].close()
    (known,) = rig.open().admin.namespaces()
    assert (known.namespace, known.nbytes) == (NAMESPACE, {"disk": ON_DISK})
    rig.stores[1].close()
    rig.medium = DictBackend(rig.medium.frames)  # its manifests are lost
    (stranger,) = rig.open().admin.namespaces()
    assert (stranger.digest, stranger.namespace, stranger.tenant) == (NAMESPACE.digest, None, None)


def test_the_largest_prefixes(rig: Rig) -> None:
    store = rig.open(host_blocks=16)
    put(store, rig, NAMESPACE, 1, 2, 3)
    put(store, rig, NAMESPACE, 1, 5)
    put(store, rig, ACME, 7, 8)
    store.evict([rig.key(2)])  # 3 is left, and what comes before it is not there
    largest = store.admin.prefixes("bytes")
    assert [(view.key[-1], view.num_blocks) for view in largest] == [(8, 2), (5, 2), (3, 1)]
    assert largest[0].nbytes == 2 * BLOCK_BYTES
    assert (largest[0].num_tokens, largest[0].tenant) == (32, ACME.salt)
    assert largest[0].tiers == {"host": 2, "disk": 2}
    assert [view.key[-1] for view in store.admin.prefixes("bytes", limit=1)] == [8]
    assert [view.key[-1] for view in store.admin.prefixes("bytes", tenant=ACME.salt)] == [8]


def test_a_system_prompt_is_hotter_than_the_conversations_that_begin_with_it(rig: Rig) -> None:
    store = rig.open(host_blocks=16)
    put(store, rig, NAMESPACE, 1, 2, 3, 4)
    store.put(NAMESPACE, rig.key(5), rig.key(2), rig.payload(5))
    for conversation in ([1, 2, 3, 4], [1, 2, 5], [1, 2, 5]):
        rig.now_s += 1.0
        store.lookup([rig.key(number) for number in conversation]).release()
    hottest = store.admin.prefixes("hits")
    assert [(view.key[-1], view.num_hits, view.num_blocks) for view in hottest] == [
        (2, 3, 2),
        (5, 2, 3),
        (4, 1, 4),
    ]
    latest = store.admin.prefixes("recent")
    assert [(view.key[-1], view.hit_ms) for view in latest] == [(5, 1_003_000), (4, 1_001_000)]


def test_hits_stay_with_a_block_that_memory_evicts(rig: Rig) -> None:
    store = rig.open(host_blocks=2, write_mode=WriteMode.BACK)
    rig.put(store, 1)
    for _ in range(3):
        store.lookup([rig.key(1)]).release()
    rig.put(store, 2)
    rig.put(store, 3)
    view = store.admin.block(rig.key(1))
    assert view is not None
    assert (view.tiers, view.num_hits) == (("disk",), 3)


def test_parents_that_go_in_a_circle_end_nowhere(rig: Rig) -> None:
    store = rig.open()
    store.put(NAMESPACE, rig.key(1), rig.key(2), rig.payload(1))
    store.put(NAMESPACE, rig.key(2), rig.key(1), rig.payload(2))
    store.put(NAMESPACE, rig.key(3), rig.key(2), rig.payload(3))
    assert [view.num_blocks for view in store.admin.prefixes("bytes")] == [3]
    assert keys_of(store, BlockFilter(prefix=rig.key(1))) == [1, 2, 3]
