"""What every eviction policy must do. Subclass ``EvictionConformance`` and give ``make_policy``.

::

    from kvstore.conformance.eviction import EvictionConformance

    class TestMostRecentlyUsed(EvictionConformance):
        def make_policy(self) -> EvictionPolicy:
            return MostRecentlyUsed()
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from itertools import islice

import pytest

from kvstore.seams import EvictionPolicy


def key(number: int) -> bytes:
    """Return the block key that stands for ``number`` in these tests."""
    return number.to_bytes(16, "big")


def is_free(_key: bytes) -> bool:
    """Say that nothing is held."""
    return False


class EvictionConformance(ABC):
    """The contract of ``EvictionPolicy`` as tests."""

    @abstractmethod
    def make_policy(self) -> EvictionPolicy:
        """Return a new, empty policy."""

    @pytest.fixture
    def policy(self) -> EvictionPolicy:
        """Return the policy under test."""
        return self.make_policy()

    def test_a_new_policy_is_empty(self, policy: EvictionPolicy) -> None:
        assert len(policy) == 0
        assert key(1) not in policy
        assert list(policy.victims(is_free)) == []
        policy.check()

    def test_what_is_inserted_is_there_until_it_is_removed(self, policy: EvictionPolicy) -> None:
        policy.insert(key(1), b"", 0.0)
        assert key(1) in policy
        assert len(policy) == 1
        policy.remove(key(1))
        assert key(1) not in policy
        assert len(policy) == 0
        policy.check()

    def test_touching_and_removing_what_is_absent_does_nothing(self, policy: EvictionPolicy) -> None:
        policy.touch(key(1), 0.0)
        policy.remove(key(1))
        assert len(policy) == 0
        policy.check()

    def test_every_block_is_a_victim_exactly_once(self, policy: EvictionPolicy) -> None:
        for number in range(1, 50):
            policy.insert(key(number), key(number // 2) if number > 1 else b"", float(number))
        victims = list(policy.victims(is_free))
        assert sorted(victims) == [key(number) for number in range(1, 50)]

    def test_asking_for_victims_changes_nothing(self, policy: EvictionPolicy) -> None:
        for number in range(1, 20):
            policy.insert(key(number), key(number // 2) if number > 1 else b"", float(number))
        first = list(islice(policy.victims(is_free), 7))
        assert list(islice(policy.victims(is_free), 7)) == first
        assert len(policy) == 19
        policy.check()

    def test_a_child_goes_before_its_parent(self, policy: EvictionPolicy) -> None:
        rng = random.Random(7)
        for number in range(1, 200):
            policy.insert(key(number), key(rng.randrange(number)) if number > 1 else b"", float(number))
            policy.touch(key(rng.randrange(1, number + 1)), float(number))
        self._assert_children_first(policy, {})

    def test_a_held_block_and_its_ancestors_are_passed_over(self, policy: EvictionPolicy) -> None:
        for number in range(1, 8):
            policy.insert(key(number), key(number // 2) if number > 1 else b"", float(number))
        victims = list(policy.victims(lambda block: block == key(5)))
        assert sorted(victims) == [key(3), key(4), key(6), key(7)]

    def test_a_block_whose_parent_is_absent_can_go(self, policy: EvictionPolicy) -> None:
        policy.insert(key(2), key(1), 0.0)
        assert list(policy.victims(is_free)) == [key(2)]

    def test_a_parent_that_arrives_after_its_child_goes_after_it(self, policy: EvictionPolicy) -> None:
        policy.insert(key(2), key(1), 0.0)
        policy.insert(key(1), b"", 1.0)
        policy.touch(key(2), 2.0)
        assert list(policy.victims(is_free)) == [key(2), key(1)]
        policy.check()

    def test_a_long_random_life_keeps_the_books_right(self, policy: EvictionPolicy) -> None:
        rng = random.Random(11)
        resident: dict[bytes, bytes] = {}
        for step in range(3000):
            block = key(rng.randrange(1, 120))
            if rng.random() < 0.45 and block not in resident:
                parent = key(rng.randrange(1, 120)) if rng.random() < 0.8 else b""
                parent = b"" if parent >= block else parent
                policy.insert(block, parent, float(step))
                resident[block] = parent
            elif rng.random() < 0.6:
                policy.touch(block, float(step))
            elif rng.random() < 0.5:
                policy.remove(block)
                resident.pop(block, None)
            else:
                for victim in list(islice(policy.victims(is_free), 3)):
                    policy.remove(victim)
                    del resident[victim]
            assert len(policy) == len(resident)
            if step % 100 == 0:
                policy.check()
                self._assert_children_first(policy, resident)

    def _assert_children_first(self, policy: EvictionPolicy, parents: dict[bytes, bytes]) -> None:
        order = {block: place for place, block in enumerate(policy.victims(is_free))}
        assert len(order) == len(policy)
        for block, parent in parents.items():
            if parent in order:
                assert order[block] < order[parent]
