from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from policies.cost_model import ComputeCost
from policies.planning import READY, Choice, Plan, PlanRequest, ReloadPolicy
from policies.reload import AlwaysCompute, AlwaysLoad, Measured, Static, Timeout
from tests.policies.requests import BLOCK_COMPUTE_S, BLOCK_TOKENS, about, line
from tests.policies.test_split import TIERS, requests

POLICIES: list[ReloadPolicy] = [AlwaysLoad(), AlwaysCompute(), Static(), Timeout(), Measured()]


def initials(plan: Plan) -> str:
    return "".join(choice.name[0] for choice in plan.choices)


@settings(max_examples=100, deadline=None)
@given(requests())
def test_every_plan_is_about_all_blocks_and_loads_none_that_is_nowhere(request: PlanRequest) -> None:
    for policy in POLICIES:
        plan = policy.plan(request)
        assert len(plan.choices) == len(request.tiers)
        for choice, tier in zip(plan.choices, request.tiers, strict=True):
            assert choice is (Choice.COMPUTE if tier is None else Choice.LOAD) or tier in TIERS
        assert all(request.tiers[index] in TIERS for index in plan.probes)
        assert all(plan.choices[index] is Choice.COMPUTE for index in plan.probes)
        assert plan.prediction.ttft_s >= 0


def test_always_load_loads_whatever_it_costs() -> None:
    plan = AlwaysLoad().plan(about([READY, "disk", None, "redis"], {"disk": line(1e-6)}))
    assert initials(plan) == "LLCL"
    assert plan.probes == ()


def test_always_compute_loads_nothing() -> None:
    plan = AlwaysCompute().plan(about([READY, "disk", None, "disk"], {"disk": line(1e6)}))
    assert initials(plan) == "LCCC"
    assert plan.prediction.ttft_s == plan.prediction.if_computed_s


@pytest.mark.parametrize(
    ("num_blocks", "num_waiting", "is_loaded"), [(64, 7, True), (63, 0, False), (64, 8, False)]
)
def test_static_loads_much_while_few_wait(num_blocks: int, num_waiting: int, *, is_loaded: bool) -> None:
    plan = Static().plan(about(["disk"] * num_blocks, num_waiting=num_waiting))
    assert set(plan.choices) == {Choice.LOAD if is_loaded else Choice.COMPUTE}
    assert "1024 reusable tokens" in plan.reason


def test_measured_begins_no_load_for_a_gain_within_the_forecast_s_error() -> None:
    def plan_at(times_break_even: float, in_flight: frozenset[int] = frozenset()) -> Plan:
        tiers = ["disk"] * 100
        loads = {"disk": line(times_break_even)}
        return Measured().plan(about(tiers, loads, in_flight=in_flight))

    assert Choice.LOAD in plan_at(0.08).choices
    assert Choice.LOAD not in plan_at(0.02).choices
    assert Choice.LOAD in plan_at(0.02, frozenset({99})).choices


def test_measured_computes_beside_loading_only_for_a_gain_beyond_the_forecast_s_error() -> None:
    def plan_at(times_break_even: float, previous: Plan | None = None, elapsed_s: float = 0.0) -> str:
        request = about(["disk"] * 100, {"disk": line(times_break_even)})
        return initials(Measured().plan(replace(request, previous=previous, elapsed_s=elapsed_s)))

    assert plan_at(15).startswith("C")  # 1 of 16 parts of the time is gained
    assert plan_at(25) == "L" * 100
    # A plan that computes goes on to, one that loads begins it for the more the longer it has lasted.
    both = Plan((Choice.COMPUTE,) * 4 + (Choice.LOAD,) * 96, Measured().plan(about([])).prediction, "")
    assert plan_at(25, previous=both).startswith("C")
    loading = replace(both, choices=(Choice.LOAD,) * 100)
    assert plan_at(15, previous=loading, elapsed_s=0.1) == "L" * 100


@pytest.mark.parametrize("num_waiting", [0, 8])
def test_static_decides_once(num_waiting: int) -> None:
    request = about([READY] * 4 + ["disk"] * 60, num_waiting=num_waiting)
    first = Static().plan(request)

    later = replace(request, tiers=[READY] * 10 + ["disk"] * 54, num_waiting=8 - num_waiting)
    assert Static().plan(replace(later, previous=first)).choices[10:] == first.choices[10:]


def test_timeout_computes_what_has_not_arrived_and_keeps_what_has() -> None:
    policy, request = Timeout(0.5), about(["disk"] * 4)
    assert initials(policy.plan(replace(request, elapsed_s=0.499))) == "LLLL"

    late = policy.plan(replace(request, tiers=["disk", "disk", READY, READY], elapsed_s=0.5))
    assert initials(late) == "CCLL"
    assert "0.5 s" in late.reason


def test_measured_computes_the_head_while_it_loads_the_tail() -> None:
    plan = Measured().plan(about(["disk"] * 8, {"disk": line(1)}))
    assert initials(plan) == "CCCCLLLL"
    assert plan.prediction.ttft_s == pytest.approx((4 + 5 / 16) * BLOCK_COMPUTE_S)
    assert plan.prediction.compute_s == pytest.approx((4 + 5 / 16) * BLOCK_COMPUTE_S)
    assert plan.prediction.load_s == pytest.approx(4 * BLOCK_COMPUTE_S)
    assert plan.prediction.if_computed_s == pytest.approx((8 + 5 / 16) * BLOCK_COMPUTE_S)
    assert plan.prediction.if_loaded_s == pytest.approx((8 + 5 / 16) * BLOCK_COMPUTE_S)


def test_measured_asks_a_tier_that_was_never_measured_for_a_few_blocks() -> None:
    plan = Measured().plan(about(["disk", "redis", "redis", "redis", "disk"], {"disk": line(1e6)}))
    assert plan.probes == (2, 3)
    assert initials(plan) == "LCCCL"


def test_measured_asks_a_tier_that_it_left_out_for_long_again() -> None:
    request = about(["disk"] * 6, {"disk": line(1e-6)})
    assert Measured().plan(request).probes == ()
    assert Measured().plan(replace(request, stale=frozenset({"disk"}))).probes == (4, 5)


def test_measured_needs_no_probe_of_a_tier_that_it_uses() -> None:
    request = about(["disk"] * 6, {"disk": line(1)}, stale=frozenset({"disk", "redis"}))
    assert Measured().plan(request).probes == ()


def test_the_sentence_for_both_says_how_much_of_each_and_what_one_alone_would_take() -> None:
    reason = Measured().plan(about(["disk"] * 8, {"disk": line(1)})).reason
    assert reason == (
        "both at once: 64 tokens from disk while the 64 before them are computed, 69 ms in all; "
        "133 ms to compute everything, 133 ms to load all that can be loaded"
    )


def test_the_sentence_tells_blocks_that_no_tier_has_from_those_that_are_computed_by_choice() -> None:
    reason = Measured().plan(about([None, None, "disk", "disk"], {"disk": line(1e6)})).reason
    assert reason.startswith("loading is fastest: 32 tokens from disk, with 32 that no tier has computed, ")


def test_the_sentence_for_loading_says_what_computing_would_take() -> None:
    tiers = ["host", "disk"] * 100
    plan = Measured().plan(about(tiers, {"host": line(1e6), "disk": line(1e6)}))
    assert plan.reason == (
        "loading is fastest: 3200 tokens from disk and host, 5 ms in all; 3.21 s to compute everything"
    )
    assert plan.reason.endswith("; 3.21 s to compute everything")


def test_the_sentence_for_computing_says_what_loading_would_take() -> None:
    reason = Measured().plan(about(["disk"] * 8, {"disk": line(0.001)})).reason
    assert reason.startswith("computing alone is fastest: 133 ms to compute everything, 128 s to load")


def test_the_sentence_when_there_is_nothing_to_load_says_so() -> None:
    reason = Measured().plan(about([READY, None, None], {"disk": line(1)})).reason
    assert reason == "nothing to load: computing takes 37 ms"


def test_with_a_tier_left_out_the_sentence_names_the_other_alone() -> None:
    tiers = ["redis"] * 4 + ["disk"] * 4
    reason = Measured().plan(about(tiers, {"disk": line(1e6), "redis": line(1e-3)})).reason
    assert f"{4 * BLOCK_TOKENS} tokens from disk while" in reason
    assert "redis" not in reason


def test_only_what_weighs_costs_keeps_blocks_out_that_are_never_loaded_faster() -> None:
    assert [policy.weighs_costs for policy in POLICIES] == [False, False, False, False, True]


def test_a_sentence_writes_no_time_as_a_power_of_ten() -> None:
    reason = Measured().plan(about([READY, None, None], {}, compute=ComputeCost(0.9996, 0.0, 0.0))).reason
    assert reason == "nothing to load: computing takes 1 s"
