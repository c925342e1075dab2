from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cost_model import ComputeCost, LoadCost
from policies.leading import leading_blocks
from policies.planning import READY, PlanRequest
from policies.reload import AlwaysCompute, AlwaysLoad, Measured, Static

UNKNOWN = LoadCost(0.005, 500.0)
REQUEST = PlanRequest(
    tiers=["disk"] * 10,
    prompt_tokens=105,
    block_tokens=10,
    block_bytes=100,
    compute=ComputeCost(0.01, 0.01, 0.0001),
    loads={"disk": LoadCost(0.001, 10_000.0), "redis": LoadCost(0.01, 100.0)},
    chunk_tokens=64,
)


def test_a_fast_tier_is_loaded_whole() -> None:
    leading = leading_blocks(Measured(), REQUEST, UNKNOWN)

    assert leading.num_blocks == 10
    assert leading.ttft_s == pytest.approx(0.101 + REQUEST.compute.prefill_s(100, 105, 64))
    assert leading.if_computed_s == REQUEST.compute.prefill_s(0, 105, 64)
    assert leading.worth_s[3] == pytest.approx(REQUEST.compute.marginal_s(0, 30))


def test_a_slow_tier_is_not_loaded() -> None:
    slow = replace(REQUEST, loads={"disk": LoadCost(0.001, 500.0)})
    assert leading_blocks(Measured(), slow, UNKNOWN).num_blocks == 0


def test_it_ends_where_a_slow_tier_begins() -> None:
    mixed = replace(REQUEST, tiers=["disk"] * 6 + ["redis"] * 4)
    assert leading_blocks(Measured(), mixed, UNKNOWN).num_blocks == 6


@pytest.mark.parametrize("policy", [Measured(), AlwaysLoad()])
def test_it_begins_behind_what_is_ready_and_ends_at_a_hole(policy: Measured | AlwaysLoad) -> None:
    holed = replace(REQUEST, tiers=[READY, READY, "disk", "disk", "disk", None, "disk", None, None, None])
    assert leading_blocks(policy, holed, UNKNOWN).num_blocks == 3


@pytest.mark.parametrize("policy", [Measured(), AlwaysLoad()])
def test_a_token_is_left_to_compute(policy: Measured | AlwaysLoad) -> None:
    assert leading_blocks(policy, replace(REQUEST, prompt_tokens=100), UNKNOWN).num_blocks == 9


def test_policies_that_weigh_no_costs_are_followed() -> None:
    assert leading_blocks(AlwaysCompute(), REQUEST, UNKNOWN).num_blocks == 0
    assert leading_blocks(Static(least_tokens=50), REQUEST, UNKNOWN).num_blocks == 10
    assert leading_blocks(Static(least_tokens=500), REQUEST, UNKNOWN).num_blocks == 0


def test_a_tier_that_was_never_measured_is_taken_for_a_usual_one() -> None:
    unmeasured = replace(REQUEST, loads={})
    assert leading_blocks(Measured(), unmeasured, LoadCost(0.001, 10_000.0)).num_blocks == 10
    assert leading_blocks(Measured(), unmeasured, LoadCost(0.001, 500.0)).num_blocks == 0


@given(
    tiers=st.lists(st.sampled_from(["disk", "redis", None]), max_size=12),
    rest=st.integers(1, 9),
    rates=st.tuples(st.floats(10, 1e5), st.floats(10, 1e5)),
    attended_s=st.floats(0, 0.01),
)
def test_no_other_number_is_much_faster(
    tiers: list[str | None], rest: int, rates: tuple[float, float], attended_s: float
) -> None:
    loads = {"disk": LoadCost(0.0, rates[0]), "redis": LoadCost(0.0, rates[1])}
    request = replace(
        REQUEST, tiers=tiers, prompt_tokens=len(tiers) * 10 + rest, loads=loads,
        compute=ComputeCost(0.0, 0.01, attended_s),
    )  # fmt: skip
    chosen = leading_blocks(Measured(), request, UNKNOWN)

    def ttft_s(num: int) -> float:
        load_s = max(
            (loads[tier].load_s(100 * tiers[:num].count(tier)) for tier in ("disk", "redis")), default=0.0
        )
        return load_s + request.compute.prefill_s(num * 10, request.prompt_tokens, 64)

    run = next((index for index, tier in enumerate(tiers) if tier is None), len(tiers))
    best_s = min(ttft_s(num) for num in range(run + 1))
    assert chosen.num_blocks <= run
    assert ttft_s(chosen.num_blocks) <= best_s / 0.95 + 1e-9
