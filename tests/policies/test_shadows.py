"""What other policies would have hit, from a sample of keys: exact where all are sampled, else close."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.simulate.replay import replay
from api.simulate.tier import TracedTier
from api.simulate.trace import read_trace
from kvstore.hints import Hint
from kvstore.seams import EvictionPolicy
from kvstore.served import ServedPrompt
from policies.arc import LeafFirstARC
from policies.lru import LeafFirstLRU
from policies.reuse import LeafFirstReuse
from policies.shadows import ShadowTier, marks_of
from policies.simulated_tier import SimulatedTier

TRACES = Path(__file__).parents[1] / "api" / "traces"
MAKERS: dict[str, Callable[[], EvictionPolicy]] = {
    "lru": LeafFirstLRU,
    "arc": LeafFirstARC,
    "reuse": LeafFirstReuse,
}
BLOCK_TOKENS = 4


def keys_of(prompt: Sequence[int]) -> tuple[bytes, ...]:
    """Return keys that name all before them."""
    prefixes = accumulate(prompt, lambda prefix, one: f"{prefix} {one}", initial="")
    return tuple(blake2b(prefix.encode(), digest_size=16).digest() for prefix in prefixes)[1:]


def prompt_of(*prompt: int, at_ms: int = 0, rest: int = 0) -> ServedPrompt:
    return ServedPrompt(at_ms, BLOCK_TOKENS, keys_of(prompt), BLOCK_TOKENS * len(prompt) + rest)


def serve(tier: ShadowTier, served: ServedPrompt) -> None:
    for _ in tier.serve(served, marks_of(served.keys), marks_of(served.answer_keys)):
        pass


def ratios(tier: ShadowTier) -> dict[str, float]:
    report = tier.report()
    assert report is not None
    return dict(report.hit_ratios)


PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=30)


@settings(deadline=None)
@given(PROMPTS, st.integers(1, 12))
def test_where_every_key_is_sampled_it_is_exact(prompts: list[list[int]], capacity: int) -> None:
    shadow, exact = ShadowTier(MAKERS, "lru", capacity), SimulatedTier(LeafFirstLRU(), capacity)
    assert shadow.rate == 1.0
    num_hit = 0
    for prompt in prompts:
        serve(shadow, prompt_of(*prompt, rest=1))
        num_hit += exact.serve(keys_of(prompt), 0.0)
    num_tokens = sum(BLOCK_TOKENS * len(prompt) + 1 for prompt in prompts)
    assert ratios(shadow)["lru"] == pytest.approx(BLOCK_TOKENS * num_hit / num_tokens)


@pytest.mark.parametrize(
    ("name", "capacity", "most_error"), [("agents", 1000, 0.05), ("conversation", 1000, 0.02)]
)
def test_a_sample_tells_about_the_same_as_all_keys(name: str, capacity: int, most_error: float) -> None:
    trace = read_trace(TRACES / f"{name}.jsonl.xz")
    shadow = ShadowTier({"lru": LeafFirstLRU}, "lru", capacity, rate=0.25)
    keys = [blake2b(key, digest_size=16).digest() for key in trace.keys]
    for request in trace.requests:
        blocks = tuple(keys[block] for block in request.blocks)
        serve(shadow, ServedPrompt(0, 512, blocks, 512 * len(blocks)))
    shadow.check()
    exact = replay(trace, "lru", capacity, TracedTier(trace, LeafFirstLRU(), capacity))
    assert ratios(shadow)["lru"] == pytest.approx(exact.block_hit_ratio, abs=most_error)


def test_a_sampled_parent_outlives_its_sampled_children() -> None:
    prompts = [prompt_of(first, *range(30)) for first in range(20)]
    shadow = ShadowTier({"lru": LeafFirstLRU}, "lru", 100, rate=0.3)
    (tier,) = shadow._tiers.values()
    for served in prompts:
        serve(shadow, served)
        for other in prompts:
            sampled = [mark.key for mark in marks_of(other.keys) if mark.number < 0.3 * 2**32]
            is_there = [key in tier.resident() for key in sampled]
            assert is_there == sorted(is_there, reverse=True)


def test_old_prompts_weigh_half_as_much_each_hour() -> None:
    shadow = ShadowTier(MAKERS, "lru", 100)
    serve(shadow, prompt_of(1, 2))
    assert ratios(shadow)["lru"] == 0.0
    serve(shadow, prompt_of(1, 2, at_ms=3_600_000))
    assert ratios(shadow)["lru"] == pytest.approx(1 / 1.5)
    serve(shadow, prompt_of(3, 4, at_ms=3_600_000))
    assert ratios(shadow)["lru"] == pytest.approx(1 / 2.5)


def test_a_time_that_goes_back_is_the_latest_that_was_heard() -> None:
    shadow = ShadowTier(MAKERS, "lru", 100)
    for at_ms in (5_000, 1_000, 6_000):
        serve(shadow, prompt_of(1, 2, at_ms=at_ms))
    assert ratios(shadow)["lru"] == pytest.approx(2 / 3, abs=1e-3)


def test_answers_are_there_for_the_next_prompt() -> None:
    shadow = ShadowTier(MAKERS, "lru", 100)
    keys = keys_of((1, 2, 3, 4))
    serve(shadow, ServedPrompt(0, BLOCK_TOKENS, keys[:2], 8, answer_keys=keys[2:3]))
    serve(shadow, ServedPrompt(0, BLOCK_TOKENS, keys, 16))
    assert ratios(shadow)["lru"] == pytest.approx(3 / 6)


def test_blocks_end_by_the_request_or_by_what_is_usual() -> None:
    for ttl_s, usual_s, hit in ((1.0, None, 0), (None, 1.0, 0), (5.0, 1.0, 1), (None, None, 1)):
        shadow = ShadowTier({"lru": LeafFirstLRU}, "lru", 100, ttl_s=usual_s)
        served = ServedPrompt(0, BLOCK_TOKENS, keys_of((1,)), BLOCK_TOKENS, ttl_s=ttl_s)
        serve(shadow, served)
        serve(shadow, prompt_of(1, at_ms=2_000))
        assert round(ratios(shadow)["lru"] * 2) == hit


def test_the_regret_is_what_the_best_would_have_hit_more() -> None:
    shadow = ShadowTier(MAKERS, "lru", 10)
    assert shadow.report() is None
    for number in range(100):  # five prompts come back, behind more others than lru can hold
        for prompt in (number % 5, number % 5, 1000 + 2 * number, 1001 + 2 * number):
            serve(shadow, prompt_of(prompt, at_ms=1000 * number))
    report = shadow.report()
    assert report is not None
    assert report.regret == pytest.approx(max(ratios(shadow).values()) - ratios(shadow)["lru"])
    assert report.regret > 0.1


@pytest.mark.parametrize("name", MAKERS)
def test_with_half_the_sample_the_rest_stays_in_its_order(name: str) -> None:
    shadow = ShadowTier({name: MAKERS[name]}, name, 200, rate=0.8)
    for first in range(20):
        serve(shadow, prompt_of(first, *range(30), at_ms=first))
    (before,) = shadow._tiers.values()
    order = list(before._policy.victims(lambda _: False))
    list(shadow.change_rate(0.4))
    shadow.check()
    (after,) = shadow._tiers.values()
    sampled = [mark.key for mark in marks_of(order) if mark.number < 0.4 * 2**32]
    assert 0 < len(after) <= 80
    assert after.resident() == set(sampled[-80:])
    if name == "lru":
        assert list(after._policy.victims(lambda _: False)) == sampled[-80:]
    serve(shadow, prompt_of(19, *range(30), at_ms=20))
    assert ratios(shadow)[name] > 0


def test_a_larger_sample_fills_up() -> None:
    shadow = ShadowTier({"lru": LeafFirstLRU}, "lru", 200, rate=0.25)
    for first in range(20):
        serve(shadow, prompt_of(first, *range(30)))
    (before,) = shadow._tiers.values()
    resident = before.resident()
    list(shadow.change_rate(0.5))
    (tier,) = shadow._tiers.values()
    assert tier.resident() == resident
    for first in range(20):
        serve(shadow, prompt_of(first, *range(30)))
    assert len(tier) == 100
    shadow.check()


def test_shadows_are_told_the_hints_that_the_live_tier_is_told() -> None:
    told: list[tuple[Sequence[bytes], Hint]] = []

    class Listener(LeafFirstLRU):
        def hear(self, keys: Sequence[bytes], hint: Hint, now_s: float) -> None:  # noqa: ARG002
            told.append((keys, hint))

    tier = ShadowTier({"lru": Listener}, "lru", 100)
    served = replace(prompt_of(1), answer_keys=keys_of([1, 2])[1:])
    serve(tier, replace(served, stop="length", expected_pause_s=60.0))
    serve(tier, replace(served, stop="stop", expected_pause_s=60.0, end_session=True))
    serve(tier, replace(served, stop="error", end_session=True))
    both = keys_of([1, 2])
    assert told == [(both, Hint(pause_s=60.0, stop="length")), (both, Hint(ends_session=True, stop="stop"))]


def test_what_was_an_hour_ago_counts_half() -> None:
    tier = ShadowTier(MAKERS, "lru", 100)
    for served in (prompt_of(1), prompt_of(1), prompt_of(2, at_ms=3_600_000)):
        serve(tier, served)
    assert set(ratios(tier).values()) == {0.25}, "half of one hit, in half of two prompts and one more"
