"""A tier without its bytes: answers follow their prompts, and a part of it goes on under another policy."""

from __future__ import annotations

from policies.lru import LeafFirstLRU
from policies.simulated_tier import SimulatedTier

A, B, C, X = b"a", b"b", b"c", b"x"


def order(policy: LeafFirstLRU) -> list[bytes]:
    return list(policy.victims(lambda _: False))


def test_an_answer_is_stored_behind_its_prompt_and_is_no_hit() -> None:
    tier = SimulatedTier(LeafFirstLRU(), 10)
    assert tier.serve([A], 0, answer=[B, C]) == 0
    assert tier.serve([A], 1, answer=[B, C]) == 1
    assert tier.serve([A, B, C], 2) == 3
    assert tier.resident() == {A, B, C}


def test_behind_a_prompt_that_does_not_fit_no_answer_is_stored() -> None:
    tier = SimulatedTier(LeafFirstLRU(), 2)
    tier.serve([A, B, C], 0, answer=[X])
    assert tier.resident() == {A, B}


def test_a_thinned_tier_keeps_what_would_have_gone_last() -> None:
    tier = SimulatedTier(LeafFirstLRU(), 10, has_ends=True)
    tier.serve([A, B, C], 0)
    tier.serve([X], 1)
    assert tier.thinned(LeafFirstLRU(), 2, lambda key: key != B).resident() == {A, X}


def test_in_a_thinned_tier_the_parent_is_the_nearest_that_was_kept() -> None:
    tier, policy = SimulatedTier(LeafFirstLRU(), 10, has_ends=True), LeafFirstLRU()
    tier.serve([A, B, C], 0)
    tier.serve([X], 1)
    thinned = tier.thinned(policy, 10, lambda key: key != B)
    assert order(policy) == [C, A, X]
    policy.touch(C, 2.0)
    assert order(policy) == [X, C, A]
    thinned.check()


def test_blocks_of_a_thinned_tier_end_when_they_would_have() -> None:
    tier = SimulatedTier(LeafFirstLRU(), 10, has_ends=True)
    tier.serve([A, B], 0, ttl_s=5)
    thinned = tier.thinned(LeafFirstLRU(), 10, lambda _: True)
    assert thinned.serve([A, B], 4_999) == 2
    assert tier.thinned(LeafFirstLRU(), 10, lambda _: True).serve([A, B], 5_000) == 0
