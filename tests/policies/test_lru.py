from __future__ import annotations

from itertools import islice

from kvstore.conformance.eviction import EvictionConformance, is_free, key
from kvstore.seams import EvictionPolicy
from policies.lru import LeafFirstLRU


class TestLeafFirstLRU(EvictionConformance):
    def make_policy(self) -> EvictionPolicy:
        return LeafFirstLRU()


def test_the_leaf_used_longest_ago_goes_first() -> None:
    policy = LeafFirstLRU()
    for number in (1, 2, 3):
        policy.insert(key(number), b"", float(number))
    policy.touch(key(1), 4.0)
    assert list(policy.victims(is_free)) == [key(2), key(3), key(1)]


def test_an_old_parent_goes_as_soon_as_its_last_child_has_gone() -> None:
    policy = LeafFirstLRU()
    policy.insert(key(1), b"", 0.0)
    policy.insert(key(2), key(1), 1.0)
    policy.insert(key(9), b"", 2.0)
    assert list(policy.victims(is_free)) == [key(2), key(1), key(9)]
    policy.remove(key(2))
    assert list(policy.victims(is_free)) == [key(1), key(9)]


def test_a_parent_exposed_twice_is_a_victim_once() -> None:
    policy = LeafFirstLRU()
    policy.insert(key(1), b"", 0.0)
    for _ in range(2):
        policy.insert(key(2), key(1), 1.0)
        policy.remove(key(2))
    assert list(policy.victims(is_free)) == [key(1)]
    policy.check()


def test_a_request_that_touches_its_blocks_from_the_last_keeps_the_root_longest() -> None:
    policy = LeafFirstLRU()
    for number in range(1, 6):
        policy.insert(key(number), key(number - 1) if number > 1 else b"", 0.0)
    for number in range(5, 0, -1):
        policy.touch(key(number), 1.0)
    assert list(islice(policy.victims(is_free), 3)) == [key(5), key(4), key(3)]


def test_stale_entries_do_not_pile_up() -> None:
    policy = LeafFirstLRU()
    policy.insert(key(1), b"", 0.0)
    for step in range(10_000):
        policy.insert(key(2), key(1), float(step))
        policy.remove(key(2))
        policy.touch(key(1), float(step))
    assert len(policy._queue._heap) <= 65
