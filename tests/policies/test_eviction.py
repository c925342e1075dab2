"""The contract of every eviction policy that comes with the project."""

from __future__ import annotations

import random

import pytest

from kvstore.conformance.eviction import EvictionConformance, is_free, key
from kvstore.conformance.eviction_machine import machine_of
from kvstore.registry import Kind, Registry
from kvstore.seams import EvictionPolicy
from policies.arc import LeafFirstARC
from policies.builtin import register_builtin
from policies.lfu import LeafFirstLFU
from policies.lru import LeafFirstLRU
from policies.reuse import LeafFirstReuse
from policies.s3fifo import LeafFirstS3FIFO

NAMES = ("lru", "lfu", "s3fifo", "arc", "reuse")


class TestLFU(EvictionConformance):
    def make_policy(self) -> EvictionPolicy:
        return LeafFirstLFU()


class TestS3FIFO(EvictionConformance):
    def make_policy(self) -> EvictionPolicy:
        return LeafFirstS3FIFO()


class TestARC(EvictionConformance):
    def make_policy(self) -> EvictionPolicy:
        return LeafFirstARC()


class TestReuse(EvictionConformance):
    def make_policy(self) -> EvictionPolicy:
        return LeafFirstReuse()


TestLifeOfLRU = machine_of(LeafFirstLRU).TestCase
TestLifeOfLFU = machine_of(LeafFirstLFU).TestCase
TestLifeOfS3FIFO = machine_of(LeafFirstS3FIFO).TestCase
TestLifeOfARC = machine_of(LeafFirstARC).TestCase
TestLifeOfReuse = machine_of(LeafFirstReuse).TestCase


def made(name: str) -> EvictionPolicy:
    registry = Registry()
    register_builtin(registry)
    policy: EvictionPolicy = registry.get(Kind.EVICTION, name)()
    return policy


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_of_blocks_that_left_is_bounded(name: str) -> None:
    policy = made(name)
    for number in range(1, 20_000):
        policy.insert(key(number), b"", float(number))
        if len(policy) > 100:
            policy.remove(next(policy.victims(is_free)))
    assert sum(len(part) for part in vars(policy).values() if hasattr(part, "__len__")) < 2_000


@pytest.mark.parametrize("name", NAMES)
def test_two_that_saw_the_same_decide_alike(name: str) -> None:
    rng = random.Random(3)
    first, second = made(name), made(name)
    for step in range(4_000):
        block = key(min(rng.randrange(1, 600), rng.randrange(1, 600)))
        for policy in (first, second):
            if block in policy:
                policy.touch(block, float(step))
            else:
                policy.insert(block, b"", float(step))
        if len(first) > 150:
            victim = next(first.victims(is_free))
            assert victim == next(second.victims(is_free))
            first.remove(victim)
            second.remove(victim)
