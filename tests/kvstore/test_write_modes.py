from __future__ import annotations

import threading

import pytest

from backends.host import HostBackend
from kvstore.absences import Cause
from kvstore.arena import Arena
from kvstore.errors import ConfigError
from kvstore.statistics import State
from kvstore.store import TieredStore
from kvstore.tier import TierConfig, TierSpec, WriteMode
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU
from tests.eventually import eventually
from tests.kvstore.conftest import BLOCK_BYTES, Rig
from tests.kvstore.faults import waiting


@pytest.mark.parametrize("write_mode", [WriteMode.BACK, WriteMode.SECOND_USE])
def test_only_a_tier_below_memory_can_be_written_later(rig: Rig, write_mode: WriteMode) -> None:
    with pytest.raises(ConfigError, match="disk_write: must be through for a tier that is not below"):
        rig.open(host_blocks=0, write_mode=write_mode)
    arena = Arena(BLOCK_BYTES)
    config = TierConfig("host", BLOCK_BYTES, write_mode)
    host = TierSpec(config, HostBackend(arena), LeafFirstLRU(), whole_blocks_that_fit)
    with pytest.raises(ConfigError, match="host_write: must be through"):
        TieredStore([host], arena)


@pytest.mark.parametrize("tier", [None, "disk"])
def test_a_cleared_block_does_not_appear_later_where_memory_had_sent_it(rig: Rig, tier: str | None) -> None:
    store = rig.open(host_blocks=1, write_mode=WriteMode.BACK)
    may_write = threading.Event()
    asked_for: list[bytes] = []
    rig.medium.fail = waiting("put", may_write, asked_for)
    rig.put(store, 1, 2, 3, 4, flush=False)
    eventually(lambda: bool(asked_for))
    assert store.clear(tier) == (4 if tier is None else 3), "one of them is being written, two are queued"
    may_write.set()
    assert store.flush(5.0)
    assert rig.medium.frames == {}
    assert rig.tiers(store, 1, 2, 3) == [None, None, None]
    assert store.why_absent(rig.key(1)).cause is Cause.CLEARED
    assert store.why_absent(rig.key(2)).cause is Cause.CLEARED
    assert rig.counts(store, "disk")["dropped_stores"] == 0


def test_a_block_that_is_stored_and_evicted_again_after_a_clear_is_written(rig: Rig) -> None:
    store = rig.open(host_blocks=1, write_mode=WriteMode.BACK)
    may_write = threading.Event()
    asked_for: list[bytes] = []
    rig.medium.fail = waiting("put", may_write, asked_for)
    rig.put(store, 1, 2, 3, flush=False)
    eventually(lambda: bool(asked_for))
    assert store.evict([rig.key(2)]) == 1
    rig.put(store, 2, flush=False)
    rig.put(store, 4, flush=False)
    may_write.set()
    assert store.flush(5.0)
    assert rig.medium.frames.keys() == {rig.key(1), rig.key(2), rig.key(3)}


def test_a_block_that_memory_sends_down_twice_is_written_once(rig: Rig) -> None:
    store = rig.open(host_blocks=1, write_mode=WriteMode.BACK)
    may_write = threading.Event()
    asked_for: list[bytes] = []
    rig.medium.fail = waiting("put", may_write, asked_for)
    for number in (1, 2, 1, 3):
        rig.put(store, number, flush=False)
    may_write.set()
    assert store.flush(5.0)
    assert sorted(asked_for) == [rig.key(1), rig.key(2)]
    assert rig.get(store, 1)
    assert store.flush(5.0)
    assert (store.health().state, store.statistics().staging_bytes) == (State.OK, 0)
