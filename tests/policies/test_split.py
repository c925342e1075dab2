from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.cost_model import ComputeCost, LoadCost
from policies.planning import READY, PlanRequest
from policies.split import Splits
from tests.policies.requests import (
    BLOCK_BYTES,
    BLOCK_COMPUTE_S,
    BLOCK_TOKENS,
    BREAK_EVEN,
    EVENLY,
    about,
    line,
)

TIERS = ("disk", "host", "redis")


def seconds(request: PlanRequest, first_loaded: int, sources: frozenset[str]) -> tuple[float, float]:
    """Return time to first token and cost of one split, counted token by token and block by block."""
    computed_head, computed_tail, asked, awaited = list[int](), list[int](), list[str](), set[str]()
    for index, tier in enumerate(request.tiers):
        tokens = range(max(index * BLOCK_TOKENS, request.position), (index + 1) * BLOCK_TOKENS)
        if tier in sources and index >= first_loaded:
            awaited.add(str(tier))
            asked += [] if index in request.in_flight else [str(tier)]
        elif tier != READY:
            (computed_head if index < first_loaded else computed_tail).extend(tokens)
    computed_tail += range(max(len(request.tiers) * BLOCK_TOKENS, request.position), request.prompt_tokens)
    head_s = tokens_s(request, computed_head) + steps_s(request, computed_head)
    tail_s = tokens_s(request, computed_tail) + steps_s(request, computed_tail)
    arrived_s = [request.loads[tier].load_s(asked.count(tier) * BLOCK_BYTES) for tier in awaited]
    if awaited:
        # The last token is computed again where all of them came from elsewhere.
        tail_s = tail_s or request.compute.step_s + request.compute.token_s
        ttft_s = max(request.compute_queue_s + head_s, *arrived_s, 0.0) + tail_s
    else:
        head_s = tokens_s(request, computed_head + computed_tail)
        head_s, tail_s = head_s + steps_s(request, computed_head + computed_tail), 0.0
        ttft_s = request.compute_queue_s + head_s
    lines_s = {tier: asked.count(tier) * BLOCK_BYTES / request.loads[tier].bytes_per_s for tier in awaited}
    others_s = sum(request.line_prices.get(tier, 0.0) * lines_s[tier] for tier in awaited)
    return ttft_s, ttft_s + request.device_price * (head_s + tail_s) + others_s


def tokens_s(request: PlanRequest, tokens: list[int]) -> float:
    return sum(request.compute.marginal_s(token, token + 1) for token in tokens)


def steps_s(request: PlanRequest, tokens: list[int]) -> float:
    return request.compute.step_s * -(-len(tokens) // request.chunk_tokens)


def all_splits(request: PlanRequest) -> Iterator[tuple[int, frozenset[str]]]:
    yield len(request.tiers), frozenset()
    held = sorted({tier for tier in request.tiers if tier in request.loads and tier is not None})
    for num in range(1, len(held) + 1):
        for sources in map(frozenset, combinations(held, num)):
            yield from ((i, sources) for i, tier in enumerate(request.tiers) if tier in sources)


def spread(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(0, 1).map(lambda share: least * (most / least) ** share)


@st.composite
def requests(draw: st.DrawFn, most_blocks: int = 24) -> PlanRequest:
    tiers: list[str | None] = draw(
        st.lists(st.sampled_from([*TIERS, *TIERS, None, READY]), min_size=1, max_size=most_blocks)
    )
    position = draw(st.integers(0, len(tiers) * BLOCK_TOKENS - 1)) if draw(st.booleans()) else 0
    started = position // BLOCK_TOKENS
    tiers[:started] = [READY] * started
    if position % BLOCK_TOKENS:
        tiers[started] = None
    loadable = [index for index, tier in enumerate(tiers) if tier in TIERS]
    in_flight = draw(st.sets(st.sampled_from(loadable))) if loadable else set[int]()
    costs = draw(st.tuples(spread(1e-6, 1e-1), spread(1e-6, 1e-2), spread(1e-9, 1e-5)))
    load = st.builds(LoadCost, spread(1e-4, 1), spread(1e6, 1e10), st.one_of(st.just(0.0), spread(1e-3, 1)))
    prices = st.one_of(st.just(0.0), st.floats(0, 8))
    return about(
        tiers,
        draw(st.fixed_dictionaries({}, optional=dict.fromkeys(TIERS, load))),
        prompt_tokens=len(tiers) * BLOCK_TOKENS + draw(st.integers(0, BLOCK_TOKENS - 1)),
        compute=ComputeCost(*costs),
        chunk_tokens=draw(st.sampled_from([5, 16, 40, 512])),
        in_flight=frozenset(in_flight),
        position=position,
        compute_queue_s=draw(st.one_of(st.just(0.0), spread(1e-3, 10))),
        device_price=draw(prices),
        line_prices=draw(st.dictionaries(st.sampled_from(TIERS), prices)),
    )


@settings(max_examples=100, deadline=None)
@given(requests())
def test_each_split_costs_what_its_tokens_and_blocks_cost(request: PlanRequest) -> None:
    splits = Splits(request)
    for index, tier in enumerate(request.tiers):
        if tier in splits.sources:
            split = splits.at(index)
            assert (split.ttft_s, split.cost_s) == pytest.approx(
                seconds(request, index, frozenset(splits.sources)), rel=1e-6
            )
    computed = splits.all_computed()
    expected = seconds(request, len(request.tiers), frozenset())
    assert (computed.ttft_s, computed.cost_s) == pytest.approx(expected, rel=1e-6)


@settings(max_examples=100, deadline=None)
@given(requests())
def test_the_best_split_costs_no_more_than_any(request: PlanRequest) -> None:
    best = Splits(request).best()
    least_s = min(seconds(request, *split)[1] for split in all_splits(request))
    assert best.cost_s == pytest.approx(seconds(request, best.first_loaded, best.sources)[1], rel=1e-6)
    assert best.cost_s <= least_s * (1 + 1e-6)


@settings(max_examples=40, deadline=None)
@given(requests(most_blocks=200), st.integers(64, 200))
def test_of_a_long_prompt_the_best_split_costs_hardly_more_than_any(
    request: PlanRequest, num_blocks: int
) -> None:
    num_more = max(0, num_blocks - len(request.tiers))
    tiers = [*request.tiers, *(list(request.tiers[-1:]) * num_more)]
    request = replace(request, tiers=tiers, prompt_tokens=len(tiers) * BLOCK_TOKENS + 3)
    splits = Splits(request)
    at_blocks = [splits.at(index) for index, tier in enumerate(tiers) if tier in splits.sources]
    least_s = min(split.cost_s for split in [splits.all_computed(), *at_blocks])
    assert splits.best().cost_s <= least_s * 1.02


def test_at_break_even_half_is_computed_and_half_is_loaded() -> None:
    splits = Splits(about(["disk"] * 64, {"disk": line(1)}))
    best = splits.best()
    assert best.first_loaded == 32
    assert best.ttft_s < 0.51 * min(splits.all_computed().ttft_s, splits.all_loaded().ttft_s)


def test_of_a_long_prompt_the_split_is_found_to_the_block() -> None:
    assert Splits(about(["disk"] * 334, {"disk": line(1)})).best().first_loaded == 167


def test_late_tokens_are_dearer_so_that_more_than_the_half_of_them_is_computed() -> None:
    cost = ComputeCost(0.0, 1e-4, 1e-6)
    whole_s = cost.marginal_s(0, 64 * BLOCK_TOKENS)
    loads = {"disk": LoadCost(0.0, 64 * BLOCK_BYTES / whole_s)}
    assert 33 <= Splits(about(["disk"] * 64, loads, compute=cost)).best().first_loaded <= 40


def test_ten_times_break_even_loads_nearly_all() -> None:
    best = Splits(about(["disk"] * 64, {"disk": line(10)})).best()
    assert 1 <= best.first_loaded <= 7


def test_a_tenth_of_break_even_computes_nearly_all() -> None:
    best = Splits(about(["disk"] * 64, {"disk": line(0.1)})).best()
    assert 57 <= best.first_loaded < 64


def test_a_latency_longer_than_computing_leaves_everything_to_it() -> None:
    splits = Splits(about(["disk"] * 8, {"disk": line(100, latency_s=9 * BLOCK_COMPUTE_S)}))
    assert splits.best() == splits.all_computed()


def test_a_tier_too_slow_is_left_out_and_its_blocks_are_computed() -> None:
    tiers = ["redis", *["host"] * 15] * 2
    best = Splits(about(tiers, {"host": line(50), "redis": line(0.01)})).best()
    assert best.sources == {"host"}


def test_several_tiers_load_at_the_same_time() -> None:
    one = Splits(about(["disk"] * 30, {"disk": line(1)})).best()
    two = Splits(about(["disk", "redis"] * 15, {"disk": line(1), "redis": line(1)})).best()
    assert two.ttft_s == pytest.approx(one.ttft_s * 2 / 3, rel=0.1)


def test_a_tier_that_was_never_measured_is_not_loaded_from() -> None:
    splits = Splits(about(["disk"] * 8))
    assert splits.sources == ()
    assert splits.best() == splits.all_loaded() == splits.all_computed()


def test_blocks_on_their_way_cost_no_more_than_the_queue_they_are_part_of() -> None:
    loads = {"disk": line(1, queue_s=4 * BLOCK_COMPUTE_S)}
    best = Splits(about(["disk"] * 8, loads, in_flight=frozenset(range(4, 8)))).best()
    assert best.first_loaded == 4


def slowed(request: PlanRequest, byte_s: float) -> Splits:
    return Splits(replace(request, compute=replace(EVENLY, loaded_byte_s=byte_s)))


def test_what_loads_take_from_computing_is_counted_while_they_flow() -> None:
    # At break-even each block that arrives costs computing half the time of one.
    splits = slowed(about(["disk"] * 90, {"disk": line(1)}), 0.5 / BREAK_EVEN)
    # While 60 blocks are loaded 30 are computed, at half the speed.
    assert splits.best().first_loaded == 30
    assert splits.at(30).compute_s == pytest.approx((60 + 5 / 16) * BLOCK_COMPUTE_S)
    # 80 are computed: each of the 10 that are loaded beside them costs half a block.
    assert splits.at(80).compute_s == pytest.approx((85 + 5 / 16) * BLOCK_COMPUTE_S)
    assert splits.all_computed().compute_s == pytest.approx((90 + 5 / 16) * BLOCK_COMPUTE_S)


def test_where_loading_needs_the_whole_processor_doing_both_gains_nothing() -> None:
    splits = slowed(about(["disk"] * 90, {"disk": line(1)}), 1 / BREAK_EVEN)
    for first_loaded in range(91):
        assert splits.at(first_loaded).ttft_s == pytest.approx((90 + 5 / 16) * BLOCK_COMPUTE_S, rel=0.01)


def test_only_bytes_that_are_loaded_take_something_from_computing() -> None:
    byte_s = 0.5 / BREAK_EVEN
    head_s = 50 * BLOCK_COMPUTE_S
    rest_s = 5 / 16 * BLOCK_COMPUTE_S
    late = slowed(about(["disk"] * 51, {"disk": line(1, latency_s=10.0)}), byte_s)
    assert late.at(50).compute_s < head_s + 0.6 * BLOCK_COMPUTE_S + rest_s
    # Two lines: one block of a quick one beside 20 of a slow one.
    tiers = ["disk"] * 50 + ["redis"] * 20 + ["host"]
    two = slowed(about(tiers, {"disk": line(1), "redis": line(0.1), "host": line(1000)}), byte_s)
    assert two.at(50).compute_s <= head_s + 21 * 0.5 * BLOCK_COMPUTE_S + rest_s + 1e-9
    # What has arrived before those who go first are computed costs nothing.
    queued = about(["disk"] * 60, {"disk": line(1)}, compute_queue_s=1.0)
    assert slowed(queued, byte_s).at(50).compute_s == pytest.approx(head_s + rest_s)


def test_a_started_block_is_computed_to_its_end() -> None:
    tiers = [READY, None, "disk", "disk"]
    fresh = Splits(about(tiers, {"disk": line(1)}, position=BLOCK_TOKENS)).all_computed()
    begun = Splits(about(tiers, {"disk": line(1)}, position=BLOCK_TOKENS + 12)).all_computed()
    assert fresh.ttft_s - begun.ttft_s == pytest.approx(12 / 16 * BLOCK_COMPUTE_S)


def test_while_all_is_loaded_the_holes_before_it_are_computed() -> None:
    loaded = Splits(about([None] * 4 + ["disk"] * 4, {"disk": line(1)})).all_loaded()
    assert loaded.ttft_s == pytest.approx(4 * BLOCK_COMPUTE_S + 5 / 16 * BLOCK_COMPUTE_S)


def test_a_device_that_others_wait_for_is_spared() -> None:
    request = about(["disk"] * 64, {"disk": line(1)})
    assert Splits(replace(request, device_price=5)).best().first_loaded == 0
    assert 0 < Splits(replace(request, device_price=0.5)).best().first_loaded <= 32


def test_a_line_that_others_wait_for_is_spared() -> None:
    request = about(["disk"] * 64, {"disk": line(1)}, line_prices={"disk": 5.0})
    assert Splits(request).best().first_loaded == 64
    assert Splits(replace(request, line_prices={"redis": 5.0})).best().first_loaded == 32


def test_who_waits_for_the_device_anyway_loads_more_meanwhile() -> None:
    request = about(["disk"] * 64, {"disk": line(1)}, compute_queue_s=20 * BLOCK_COMPUTE_S)
    assert Splits(request).best().first_loaded == 22
