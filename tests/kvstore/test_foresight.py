"""What a store does with what it is told of how blocks will be wanted."""

from __future__ import annotations

import threading

from kvstore.hints import Hint
from kvstore.ledger import Ledger
from kvstore.seams import EvictionPolicy
from kvstore.spared import Spared
from kvstore.store import TieredStore
from policies.lru import LeafFirstLRU
from tests.eventually import eventually
from tests.kvstore.conftest import NAMESPACE, Rig
from tests.kvstore.faults import waiting
from tests.policies.agents import SAID_TO_END, convince


def policy_of(store: TieredStore, tier: str) -> EvictionPolicy:
    return store._index._ledger(store._names.index(tier)).policy


def keys(rig: Rig, *numbers: int) -> list[bytes]:
    return [rig.key(number) for number in numbers]


def test_blocks_of_an_ended_session_go_first_from_memory(rig: Rig) -> None:
    store = rig.open(host_blocks=4, disk_blocks=0)
    convince(policy_of(store, "host"))
    rig.put(store, 1, 2)
    rig.put(store, 5, 6)
    store.foresight.hint(keys(rig, 5, 6), SAID_TO_END)
    rig.put(store, 7, 8)
    assert rig.tiers(store, 1, 2, 5, 6) == ["host", "host", None, None]


def test_a_tier_that_is_written_behind_hears_when_the_blocks_are_there(rig: Rig) -> None:
    store = rig.open(host_blocks=2, disk_blocks=4)
    convince(policy_of(store, "disk"))
    rig.put(store, 1, 2)
    may_write = threading.Event()
    rig.medium.fail = waiting("put", may_write, [])
    rig.put(store, 5, 6, flush=False)
    store.foresight.hint(keys(rig, 5, 6), SAID_TO_END)
    may_write.set()
    rig.put(store, 7, 8)
    assert rig.medium.frames.keys() == set(keys(rig, 1, 2, 7, 8))


def test_a_hint_for_a_full_queue_is_lost_and_nothing_else(rig: Rig) -> None:
    store = rig.open(host_blocks=0, disk_blocks=4, max_queued_writes=1)
    store.register_namespace(NAMESPACE)
    assert store.flush(5.0)
    rig.put(store, 1)
    may_write, asked_for = threading.Event(), list[bytes]()
    rig.medium.fail = waiting("put", may_write, asked_for)
    rig.put(store, 2, flush=False)
    eventually(lambda: bool(asked_for))
    rig.put(store, 3, flush=False)
    store.foresight.hint(keys(rig, 1, 2, 3), SAID_TO_END)
    may_write.set()
    assert store.flush(5.0)
    assert rig.tiers(store, 1, 2, 3) == ["disk"] * 3
    assert rig.counts(store, "disk")["dropped_stores"] == 0


def test_what_is_spared_goes_last(rig: Rig) -> None:
    store = rig.open(host_blocks=4, disk_blocks=0)
    rig.put(store, 1, 2)
    rig.put(store, 3, 4)
    store.foresight.spare(keys(rig, 1, 2))
    rig.put(store, 5)
    rig.put(store, 6)
    assert rig.tiers(store, 1, 2, 3, 4) == ["host", "host", None, None]


def test_what_is_spared_goes_where_there_is_nothing_else(rig: Rig) -> None:
    store = rig.open(host_blocks=2, disk_blocks=0)
    rig.put(store, 1, 2)
    store.foresight.spare(keys(rig, 1, 2, 3))
    assert rig.put(store, 3) == 1
    assert rig.tiers(store, 1, 2, 3) == ["host", None, "host"]


def test_what_is_taken_back_goes_in_its_turn(rig: Rig) -> None:
    store = rig.open(host_blocks=2, disk_blocks=0)
    rig.put(store, 1)
    rig.put(store, 2)
    store.foresight.spare(keys(rig, 1))
    store.foresight.spare(keys(rig, 1))
    store.foresight.unspare(keys(rig, 1))
    rig.put(store, 3)
    assert store.peek(keys(rig, 1, 2, 3)) == ("host", None, "host")
    store.foresight.unspare(keys(rig, 1))
    rig.put(store, 4)
    assert store.peek(keys(rig, 1, 3, 4)) == (None, "host", "host")


def test_a_spared_block_still_ends_when_its_time_is_over(rig: Rig) -> None:
    store = rig.open(disk_blocks=0)
    rig.put(store, 1, ttl_s=10.0)
    store.foresight.spare(keys(rig, 1))
    rig.now_s += 11
    assert rig.tiers(store, 1) == [None]


def test_taking_back_what_was_never_spared_does_nothing() -> None:
    spared = Spared()
    spared.unspare([b"a"])
    assert len(spared) == 0
    spared.spare([b"a"])
    assert b"a" in spared


class WithoutHints:
    """A policy as plugins have it that take no hints."""

    def __init__(self) -> None:
        inner = LeafFirstLRU()
        self.insert, self.touch, self.remove = inner.insert, inner.touch, inner.remove
        self.victims, self.check, self.__len = inner.victims, inner.check, inner.__len__
        self.__contains = inner.__contains__

    def __len__(self) -> int:
        return self.__len()

    def __contains__(self, key: bytes) -> bool:
        return self.__contains(key)


def test_a_policy_that_takes_no_hints_is_told_none() -> None:
    ledger = Ledger(10, WithoutHints())
    ledger.add(b"a", b"", 1, 0.0)
    assert not ledger.hears
    ledger.hear([b"a"], Hint(), 0.0)
    ledger.check()
