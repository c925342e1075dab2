"""What is learnt of when blocks are used again: known ways of use have known indices."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from policies.hazards import Hazards, Past

Gap = Callable[[], float]


def lives(
    hazards: Hazards, gap: Gap, num_blocks: int, num_uses: int, start_s: float = 0.0
) -> tuple[Past, float]:
    """Let blocks be used again and again; returns one of them, and when it was over."""
    keys = [f"{start_s} {number}".encode() for number in range(num_blocks)]
    pasts = [Past(key, start_s) for key in keys]
    uses = list[tuple[float, int]]()
    for number, past in enumerate(pasts):
        hazards.begin(past)
        now_s = start_s
        for _ in range(num_uses):
            now_s += gap()
            uses.append((now_s, number))
    for now_s, number in sorted(uses):
        hazards.refit(now_s)
        hazards.use(pasts[number], now_s)
    return pasts[0], max(uses)[0]


def test_before_anything_is_learnt_the_newest_is_worth_most() -> None:
    hazards = Hazards()
    assert hazards.index(0, 1.0) > hazards.index(0, 2.0) > hazards.index(0, 1000.0) > 0


def test_blocks_without_memory_are_worth_their_rate_at_any_age() -> None:
    hazards, rng = Hazards(), random.Random(1)
    past, _ = lives(hazards, lambda: rng.expovariate(1 / 10), 500, 60)
    for age_s in (0.5, 2.0, 8.0, 20.0):
        assert hazards.index(past.kind(), age_s) == pytest.approx(0.1, rel=0.35)


def test_blocks_used_on_time_are_worth_more_the_nearer_that_is() -> None:
    hazards = Hazards()
    past, _ = lives(hazards, lambda: 16.0, 200, 40)
    soon = [hazards.index(past.kind(), age_s) for age_s in (1.0, 6.0, 12.0, 14.0)]
    assert soon == sorted(soon)
    assert soon[1] == pytest.approx(1 / (16 - 6), rel=0.3)
    assert hazards.index(past.kind(), 100.0) < 0.01


def test_blocks_that_still_wait_count_too() -> None:
    """One in four is used after a second, the others never: the chance is a quarter, and none later."""
    hazards = Hazards()
    pasts = [Past(number.to_bytes(16, "big"), 0.0) for number in range(4_000)]
    for past in pasts:
        hazards.begin(past)
    for past in pasts[:1_000]:
        hazards.use(past, 1.0)
    assert hazards.refit(1_000.0)
    assert hazards.index(0, 0.0) == pytest.approx(0.25 / 1.3, rel=0.3)
    assert hazards.index(0, 10.0) < 0.01 * hazards.index(0, 0.0)


def test_blocks_of_which_nothing_more_is_heard_count_as_long_as_they_waited() -> None:
    hazards = Hazards()
    pasts = [Past(number.to_bytes(16, "big"), 0.0) for number in range(2_000)]
    for past in pasts:
        hazards.begin(past)
    for past in pasts[:1_000]:
        hazards.lose(past, 0.5)
    for past in pasts[1_000:]:
        hazards.use(past, 4.0)
    assert hazards.refit(5.0)
    assert hazards.index(0, 3.0) == pytest.approx(1.0, rel=0.5), "all that were left were used"
    assert not hazards._sample.keys() & {past.number for past in pasts[:1_000]}


def test_a_class_of_which_little_is_known_is_taken_to_be_like_the_others() -> None:
    hazards, rng = Hazards(), random.Random(1)
    past, _ = lives(hazards, lambda: rng.expovariate(1 / 10), 500, 60)
    never_seen = Past(b"new", 0.0)
    for now_s in (1e6, 2e6, 3e6):
        never_seen.use(now_s)
    assert never_seen.kind() not in hazards._counts
    assert hazards.index(never_seen.kind(), 5.0) == pytest.approx(hazards.index(past.kind(), 5.0), rel=0.25)


def test_what_was_learnt_long_ago_fades() -> None:
    hazards = Hazards()
    _, over_s = lives(hazards, lambda: 1.0, 100, 100)
    past, _ = lives(hazards, lambda: 64.0, 100, 2, over_s)
    before = hazards.index(past.kind(), 0.25)
    past, _ = lives(hazards, lambda: 64.0, 100, 1_000, over_s + 200)
    assert hazards.index(past.kind(), 50.0) == pytest.approx(1 / 14, rel=0.6)
    assert hazards.index(past.kind(), 0.25) < 0.1 < before


def test_the_sample_is_bounded_and_what_it_shows_is_not_distorted_by_that() -> None:
    hazards, rng = Hazards(), random.Random(1)
    lives(hazards, lambda: rng.expovariate(1 / 10), 30_000, 3)
    past = Past(b"used twice", 0.0)
    past.use(8.0)
    assert len(hazards._sample) <= 8_192
    assert hazards._share < 1 << 32
    assert hazards.index(past.kind(), 5.0) == pytest.approx(0.1, rel=0.35)


def test_blocks_of_one_request_count_as_one_witness() -> None:
    """A hundred blocks a request need a hundred times as many uses to be believed."""
    believed = []
    for at_once in (1, 100):
        hazards = Hazards()
        pasts = [Past(number.to_bytes(16, "big"), number // at_once) for number in range(2_000)]
        for past in pasts:
            hazards.begin(past)
        assert hazards.refit(3_000.0)
        believed.append(hazards._belief)
    assert believed[1] == pytest.approx(100 * believed[0])
