from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvstore.errors import ConfigError, LeaseExpiredError, StoreClosedError
from kvstore.namespace import Namespace
from kvstore.statistics import State
from kvstore.store import StoreConfig
from kvstore.tier import TierConfig, WriteMode
from tests.kvstore.conftest import Rig
from tests.kvstore.faults import waiting

NAMESPACE = Namespace("weights", "{}", "float32", "float32", block_tokens=16)


def test_what_is_stored_is_loaded_from_memory(rig: Rig) -> None:
    store = rig.open()
    assert rig.put(store, 1, 2) == 2
    assert rig.get(store, 1)
    assert rig.get(store, 2)
    assert not rig.get(store, 3)
    counts = rig.counts(store, "host")
    assert (counts["stores"], counts["stored_bytes"]) == (2, 8192)
    assert (counts["loads"], counts["loaded_bytes"]) == (2, 8192)


def test_a_block_reaches_the_lower_tier_behind_and_is_loaded_from_there_after_a_restart(rig: Rig) -> None:
    rig.put(rig.open(), 1, 2)
    rig.stores[0].close()
    store = rig.open()
    assert rig.tiers(store, 1, 2) == ["disk", "disk"]
    assert rig.get(store, 1)
    assert rig.tiers(store, 1) == ["host"], "a loaded block is promoted"
    assert rig.counts(store, "host")["promotions"] == 1


def test_a_second_store_of_the_same_block_does_nothing(rig: Rig) -> None:
    store = rig.open()
    assert rig.put(store, 1) == 1
    assert rig.put(store, 1) == 0
    assert rig.counts(store, "disk")["stores"] == 1


def test_leaves_make_way_for_newcomers_and_the_root_stays(rig: Rig) -> None:
    store = rig.open(host_blocks=4, disk_blocks=0)
    rig.put(store, 1, 2, 3, 4)
    rig.put(store, 9)
    assert rig.tiers(store, 1, 2, 3, 4, 9) == ["host", "host", "host", None, "host"]
    assert rig.counts(store, "host")["evictions"] == 1


def test_leased_blocks_are_not_evicted(rig: Rig) -> None:
    store = rig.open(host_blocks=2, disk_blocks=0)
    rig.put(store, 1, 2)
    hit = store.lookup([rig.key(1), rig.key(2)])
    assert rig.put(store, 3) == 0
    assert rig.counts(store, "host")["dropped_stores"] == 1
    hit.release()
    assert rig.put(store, 3) == 1


def test_a_lease_is_over_at_its_deadline(rig: Rig) -> None:
    store = rig.open(host_blocks=2, disk_blocks=0)
    rig.put(store, 1, 2)
    hit = store.lookup([rig.key(1), rig.key(2)], lease_s=0.5)
    rig.now_s += 0.5
    with pytest.raises(LeaseExpiredError) as refused:
        store.load(hit, 0, rig.now_s + 1)
    assert refused.value.late_s == pytest.approx(0.0)
    assert rig.put(store, 3) == 1, "an overdue lease holds nothing"


def test_a_forgotten_lease_is_given_back_by_the_next_lookup(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    store.lookup([rig.key(1)], lease_s=1.0)
    rig.now_s += 2.0
    store.lookup([])
    assert store.num_holds == 0


def test_a_loaded_block_stays_valid_until_it_is_released(rig: Rig) -> None:
    store = rig.open(host_blocks=1, disk_blocks=0)
    rig.put(store, 1)
    hit = store.lookup([rig.key(1)])
    block = store.load(hit, 0, rig.now_s + 1).take()
    hit.release()
    assert block is not None
    assert rig.put(store, 2) == 0
    assert block.data == rig.payload(1)
    assert (block.tier, rig.tiers(store, 1)) == ("host", ["host"])
    block.release()
    block.release()
    assert rig.put(store, 2) == 1
    with pytest.raises(ValueError, match="released"):
        _ = block.data


def test_a_host_tier_smaller_than_what_passes_through_keeps_storing_below(rig: Rig) -> None:
    store = rig.open(host_blocks=1, disk_blocks=32)
    for number in range(20):
        rig.put(store, number)
    assert rig.counts(store, "disk")["stores"] == 20
    assert all(rig.get(store, number) for number in range(20))


def test_without_a_host_tier_blocks_go_straight_to_disk(rig: Rig) -> None:
    store = rig.open(host_blocks=0)
    rig.put(store, 1, 2)
    assert rig.tiers(store, 1, 2) == ["disk", "disk"]
    assert rig.get(store, 2)
    assert store.statistics().staging_bytes == 0


def test_the_disk_stays_within_its_budget(rig: Rig) -> None:
    store = rig.open(host_blocks=0, disk_blocks=3)
    for number in range(10):
        rig.put(store, number)
        assert len(rig.medium.frames) <= 3
    assert rig.tiers(store, 9, 8, 7, 6) == ["disk", "disk", "disk", None]


def test_write_back_stores_what_the_host_tier_evicts(rig: Rig) -> None:
    store = rig.open(host_blocks=2, write_mode=WriteMode.BACK)
    rig.put(store, 1)
    rig.put(store, 2)
    assert not rig.medium.frames
    rig.put(store, 3)
    assert list(rig.medium.frames) == [rig.key(1)]
    for number in (1, 2, 3):
        assert rig.get(store, number)
        assert store.flush(5.0)


def test_second_use_stores_what_is_hit_again(rig: Rig) -> None:
    store = rig.open(write_mode=WriteMode.SECOND_USE)
    rig.put(store, 1)
    rig.put(store, 2)
    store.lookup([rig.key(2)]).release()
    assert store.flush(5.0)
    assert list(rig.medium.frames) == [rig.key(2)]


def test_second_use_queues_a_block_once_however_often_it_is_hit_meanwhile(rig: Rig) -> None:
    store = rig.open(write_mode=WriteMode.SECOND_USE)
    rig.put(store, 1)
    may_write = threading.Event()
    rig.medium.fail = waiting("put", may_write)
    for _ in range(5):
        store.lookup([rig.key(1)]).release()
    may_write.set()
    assert store.flush(5.0)
    assert (rig.counts(store, "disk")["stores"], rig.counts(store, "disk")["dropped_stores"]) == (1, 0)
    assert store.num_holds == 0


def test_a_block_ends_with_its_ttl_in_every_tier(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1, ttl_s=10.0)
    rig.now_s += 9.9
    assert rig.tiers(store, 1) == ["host"]
    rig.now_s += 24 * 3600.0
    assert rig.tiers(store, 1) == [None]
    store.flush(5.0)
    assert not rig.medium.frames
    assert rig.counts(store, "host")["expirations"] == rig.counts(store, "disk")["expirations"] == 1


@pytest.mark.parametrize("host_blocks", [0, 8])
def test_a_block_whose_ttl_is_over_is_not_read_without_a_lease(rig: Rig, host_blocks: int) -> None:
    store = rig.open(host_blocks=host_blocks)
    rig.put(store, 1, ttl_s=10.0)
    hit = store.lookup([rig.key(1)], ttl_s=1.0)
    rig.now_s += 11.0
    assert not rig.get(store, 1)
    ticket = store.load(hit, 0, rig.now_s + 1)
    assert ticket.wait(5.0)
    block = ticket.take()
    assert block is not None, "a lease outlasts a TTL"
    block.release()
    hit.release()


def test_a_hit_extends_a_ttl_and_never_shortens_it(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(default_ttl_s=None))
    rig.put(store, 1, ttl_s=10.0)
    store.lookup([rig.key(1)], ttl_s=100.0).release()
    store.lookup([rig.key(1)], ttl_s=1.0).release()
    rig.now_s += 99.0
    assert rig.tiers(store, 1) == ["host"]


def test_a_ttl_survives_a_restart_and_is_not_counted_anew(rig: Rig) -> None:
    rig.put(rig.open(), 1, ttl_s=10.0)
    rig.stores[0].close()
    rig.now_s += 10.0
    assert rig.tiers(rig.open(), 1) == [None]
    assert not rig.medium.frames


def test_a_namespace_leaves_its_manifest_on_the_medium(rig: Rig) -> None:
    store = rig.open()
    store.register_namespace(NAMESPACE)
    store.flush(5.0)
    assert Namespace.from_manifest(rig.medium.kept_manifests[NAMESPACE.digest]) == NAMESPACE


def test_a_salted_namespace_leaves_its_manifest_with_its_first_block(rig: Rig) -> None:
    store = rig.open()
    salted = NAMESPACE.with_salt("tenant")
    store.put(salted, rig.key(1), b"", rig.payload(1))
    store.flush(5.0)
    assert Namespace.from_manifest(rig.medium.kept_manifests[salted.digest]) == salted


def test_a_manifest_for_which_there_was_no_room_in_the_queue_comes_with_a_later_block(rig: Rig) -> None:
    store = rig.open(max_queued_writes=1)
    store.register_namespace(NAMESPACE)
    assert store.flush(5.0)
    may_write, is_writing = threading.Event(), threading.Event()

    def slow_put(operation: str, _key: bytes) -> None:
        if operation == "put":
            is_writing.set()
            may_write.wait(10.0)

    rig.medium.fail = slow_put
    rig.put(store, 1, flush=False)
    assert is_writing.wait(5.0)
    rig.put(store, 2, flush=False)
    salted = NAMESPACE.with_salt("tenant")
    store.put(salted, rig.key(4), b"", rig.payload(4))
    may_write.set()
    assert store.flush(5.0)
    assert salted.digest not in rig.medium.kept_manifests
    store.put(salted, rig.key(5), rig.key(4), rig.payload(5))
    assert store.flush(5.0)
    assert salted.digest in rig.medium.kept_manifests


def test_a_block_that_was_hit_outlives_one_that_was_not(rig: Rig) -> None:
    store = rig.open(host_blocks=2, disk_blocks=0)
    rig.put(store, 1)
    rig.put(store, 2)
    store.lookup([rig.key(1)]).release()
    rig.put(store, 3)
    assert rig.tiers(store, 1, 2, 3) == ["host", None, "host"]


def test_a_block_that_is_on_the_device_first_ends_with_the_ttl_it_is_stored_with(rig: Rig) -> None:
    store = rig.open()
    store.device_added(rig.key(1), b"")
    rig.put(store, 1, ttl_s=10.0)
    assert store.ended([rig.key(1), rig.key(2)]) == []
    rig.now_s += 10.0
    assert store.ended([rig.key(1), rig.key(2)]) == [rig.key(1)]
    assert rig.tiers(store, 1) == [None]


def test_statistics_name_the_tiers_from_the_fastest(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    store.device_added(rig.key(1), b"")
    tiers = store.statistics().tiers
    assert [(tier.name, tier.num_blocks) for tier in tiers] == [("device", 1), ("host", 1), ("disk", 1)]
    assert tiers[1].used_bytes == 4096
    assert store.health().state is State.OK


def test_a_closed_store_takes_nothing_and_says_so(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    store.close()
    assert store.reserve(NAMESPACE, rig.key(2), b"", 4096) is None
    with pytest.raises(StoreClosedError):
        rig.get(store, 1)
    assert store.health().state is State.UNHEALTHY
    assert rig.medium.is_closed


@pytest.mark.parametrize("budget", [0, -1])
def test_an_absurd_budget_is_refused(budget: int) -> None:
    with pytest.raises(ConfigError, match="host_bytes: must be positive"):
        TierConfig("host", budget)


def test_a_tier_cannot_be_called_device() -> None:
    with pytest.raises(ConfigError, match="device"):
        TierConfig("device", 1)


def test_absurd_times_and_shares_are_refused() -> None:
    with pytest.raises(ConfigError, match="default_ttl_s: must be positive"):
        StoreConfig(default_ttl_s=0.0)
    with pytest.raises(ConfigError, match="audit_share: must lie between 0 and 1"):
        StoreConfig(audit_share=1.5)


def test_a_peek_tells_the_fastest_tier_and_leaves_everything_as_it_was(rig: Rig) -> None:
    store = rig.open(host_blocks=2)
    rig.put(store, 1, ttl_s=10.0)
    rig.put(store, 2, ttl_s=10.0)
    store.device_added(rig.key(2), b"")
    assert store.peek([rig.key(number) for number in (1, 2, 3)]) == ("host", "device", None)
    assert (store.num_holds, store.statistics().num_blocks_wanted) == (0, 0)
    rig.put(store, 4)
    assert store.peek([rig.key(1)]) == ("disk",), "a peek is no use: 1 was the oldest and made way"
    rig.now_s += 10.0
    assert store.peek([rig.key(1), rig.key(2)]) == (None, None), "nor an extension"


def test_lookups_of_many_threads_are_all_counted(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def look_up() -> None:
        for _ in range(500):
            store.lookup([rig.key(1), rig.key(2)]).release()

    try:
        with ThreadPoolExecutor(4) as threads:
            for running in [threads.submit(look_up) for _ in range(4)]:
                running.result()
    finally:
        sys.setswitchinterval(before_s)
    statistics = store.statistics()
    assert (statistics.num_blocks_wanted, statistics.num_blocks_found) == (4000, 2000)
