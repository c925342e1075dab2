from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine_adapter.sglang.pool_hits import PoolHits, leading

PRESENCE = st.lists(st.booleans(), min_size=8, max_size=8)


def restorable(kv: list[bool], whole: list[bool], trailing: list[bool], window: int) -> list[int]:
    """Say it as the words do: every length whose pages, and whose last states, are all there."""
    return [
        length
        for length in range(1, len(kv) + 1)
        if all(kv[:length]) and all(whole[:length]) and all(trailing[max(0, length - window) : length])
    ]


@given(PRESENCE, PRESENCE, PRESENCE, st.integers(0, 4))
def test_a_prompt_reaches_as_far_as_all_its_pools(
    kv: list[bool], whole: list[bool], trailing: list[bool], window: int
) -> None:
    hits = PoolHits("kv", kv)
    hits.narrow("indexer", "all_pages", whole, 0)
    hits.narrow("mamba", "trailing_pages", trailing, window)
    assert hits.restorable == restorable(kv, whole, trailing, max(1, window))
    assert hits.num_pages == max(hits.restorable, default=0)
    everything, alone = [True] * 8, hits.of_each_pool.get
    assert alone("kv", 0) == leading(kv)
    assert alone("indexer", 0) == max(restorable(kv, whole, everything, 1), default=0)
    assert alone("mamba", 0) == max(restorable(kv, everything, trailing, max(1, window)), default=0)


def test_a_pool_under_another_policy_has_no_say() -> None:
    hits = PoolHits("kv", [True, True])
    hits.narrow("blocks", "block_groups", [False, False], 0)
    assert (hits.num_pages, hits.of_each_pool) == (2, {"kv": 2})
