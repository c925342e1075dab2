"""What makes each eviction policy the one it is named for."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest

from kvstore.conformance.eviction import is_free, key
from kvstore.seams import EvictionPolicy
from policies.arc import LeafFirstARC
from policies.lfu import LeafFirstLFU
from policies.lru import LeafFirstLRU
from policies.reuse import LeafFirstReuse
from policies.s3fifo import LeafFirstS3FIFO

Use = tuple[float, int]


def insert(policy: EvictionPolicy, *numbers: int) -> None:
    for number in numbers:
        policy.insert(key(number), b"", 0.0)


def touch(policy: EvictionPolicy, number: int, times: int = 1) -> None:
    for _ in range(times):
        policy.touch(key(number), 0.0)


def order(policy: EvictionPolicy) -> list[int]:
    return [int.from_bytes(victim) for victim in policy.victims(is_free)]


def num_hits(policy: EvictionPolicy, capacity: int, uses: Iterable[Use]) -> int:
    """Use blocks one by one, each in the place of a victim when it is not there; returns how many were."""
    hits = 0
    for now_s, number in uses:
        if key(number) in policy:
            hits += 1
            policy.touch(key(number), now_s)
            continue
        if len(policy) == capacity:
            policy.remove(next(policy.victims(is_free)))
        policy.insert(key(number), b"", now_s)
    return hits


def test_lfu_lets_go_what_was_used_least_often() -> None:
    policy = LeafFirstLFU()
    insert(policy, 1, 2, 3)
    touch(policy, 1, times=3)
    touch(policy, 2)
    assert order(policy) == [3, 2, 1]


def test_lfu_remembers_the_uses_of_a_block_that_comes_back() -> None:
    policy = LeafFirstLFU()
    insert(policy, 1, 2)
    touch(policy, 1, times=3)
    policy.remove(key(1))
    insert(policy, 1)
    touch(policy, 2)
    assert order(policy) == [2, 1]


def test_lfu_forgets_what_was_wanted_long_ago() -> None:
    policy = LeafFirstLFU()
    insert(policy, 1, 2, 3)
    touch(policy, 1, times=15)
    touch(policy, 3, times=6 * 8 * 3)
    touch(policy, 2, times=3)
    assert order(policy) == [1, 2, 3], "sixteen uses have halved six times"


def test_s3fifo_lets_newcomers_go_that_were_not_used_on_probation() -> None:
    policy = LeafFirstS3FIFO()
    insert(policy, 1, 2, 3, 4)
    touch(policy, 3)
    assert order(policy)[:2] == [1, 2]
    policy.remove(key(1))
    policy.remove(key(2))
    assert order(policy) == [4, 3], "3 has come round"


def test_s3fifo_lets_a_block_that_comes_back_skip_probation() -> None:
    policy = LeafFirstS3FIFO()
    insert(policy, 1, 2, 3)
    policy.remove(key(1))
    insert(policy, 1, 4)
    assert order(policy) == [2, 3, 4, 1]


def test_s3fifo_lets_a_block_come_round_once_for_each_use() -> None:
    policy = LeafFirstS3FIFO()
    insert(policy, 1, 2)
    touch(policy, 1)
    touch(policy, 2)
    assert order(policy) == [1, 2]
    touch(policy, 1)
    assert order(policy) == [2, 1]


def test_arc_lets_blocks_that_were_used_once_go_first() -> None:
    policy = LeafFirstARC()
    insert(policy, 1, 2, 3)
    touch(policy, 1)
    assert order(policy) == [2, 3, 1]


def test_arc_moves_the_share_to_the_queue_that_was_cut_too_short() -> None:
    policy = LeafFirstARC()
    insert(policy, 1, 2, 3)
    touch(policy, 1)
    policy.remove(key(2))
    insert(policy, 2, 4)  # 2 comes back: a third of the room is meant for blocks used once
    policy.remove(key(3))
    assert order(policy) == [1, 2, 4]
    policy.remove(key(1))
    insert(policy, 1)  # and now a block comes back that was used again
    assert order(policy) == [4, 2, 1]


def test_arc_remembers_no_more_than_published() -> None:
    rng, policy, capacity = random.Random(5), LeafFirstARC(), 40
    for step in range(5_000):
        num_hits(policy, capacity, [(0.0, rng.randrange(1, 60 if step % 7 else 500))])
        once = policy._num_once + len(policy._once_ghosts)
        if len(policy) == capacity:
            assert once <= capacity
            assert len(policy) + len(policy._once_ghosts) + len(policy._again_ghosts) <= 2 * capacity
    assert policy._num_once == len(policy._once)


def hot_and_scans(num: int) -> list[Use]:
    """Return uses of 20 blocks every ten seconds each, between three times as many that are used once."""
    return [(step / 8, step // 4 % 20 if step % 4 == 0 else 1_000 + step) for step in range(num)]


def test_reuse_keeps_what_is_used_again_although_it_was_used_longer_ago() -> None:
    uses = hot_and_scans(12_000)
    assert num_hits(LeafFirstLRU(), 40, uses) == 0
    policy = LeafFirstReuse()
    assert num_hits(policy, 40, uses) > 0.9 * 12_000 / 4
    assert all(number >= 1_000 for number in order(policy)[:15])


@pytest.mark.parametrize("stretch", [0.1, 10.0])
def test_reuse_does_alike_whatever_time_is_counted_in(stretch: float) -> None:
    rng, uses = random.Random(2), list[Use]()
    for step in range(12_000):
        uses.append((step / 8, min(rng.randrange(600), rng.randrange(600), rng.randrange(600))))
    stretched = [(now_s * stretch, number) for now_s, number in uses]
    hits = num_hits(LeafFirstReuse(), 100, uses)
    assert num_hits(LeafFirstReuse(), 100, stretched) == pytest.approx(hits, rel=0.03)
    assert hits > num_hits(LeafFirstLRU(), 100, uses)


def sessions(rng: random.Random, num: int) -> list[Sequence[int]]:
    """Return blocks by turn of 30 sessions that go on with the same chance whenever they wait."""
    prompts = {place: [place * 1_000_000] for place in range(30)}
    turns = list[Sequence[int]]()
    for step in range(num):
        place = rng.randrange(30)
        if rng.random() < 0.05:
            prompts[place] = [1_000 * step + 500_000_000]
        prompts[place] = [*prompts[place], prompts[place][-1] + 1]
        turns.append(prompts[place])
    return turns


def test_reuse_is_hardly_worse_than_lru_where_there_is_nothing_to_learn() -> None:
    hits = dict[type, int]()
    turns = sessions(random.Random(4), 3_000)
    for kind in (LeafFirstLRU, LeafFirstReuse):
        policy: EvictionPolicy = kind()
        hits[kind] = 0
        for step, turn in enumerate(turns):
            num_found = next((index for index, one in enumerate(turn) if key(one) not in policy), len(turn))
            hits[kind] += num_found
            for number in reversed(turn[:num_found]):
                policy.touch(key(number), float(step))
            own = {key(number) for number in turn}
            for above, number in zip(["", *turn], turn, strict=False):
                if key(number) not in policy:
                    if len(policy) >= 300:
                        policy.remove(next(policy.victims(own.__contains__)))
                    policy.insert(key(number), key(above) if isinstance(above, int) else b"", float(step))
    num_blocks = sum(map(len, turns))
    assert hits[LeafFirstReuse] > hits[LeafFirstLRU] - 0.006 * num_blocks, "learning costs little"
