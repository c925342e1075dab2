from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cost_model import ComputeCost, LoadCost, Work, attended_between

COST = ComputeCost(step_s=0.01, token_s=0.001, attended_s=1e-6, decode_s=0.002, context_s=1e-5)


def test_a_token_attends_to_itself_and_all_before_it() -> None:
    assert [attended_between(0, 1), attended_between(0, 3), attended_between(3, 5)] == [1, 1 + 2 + 3, 4 + 5]


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000))
def test_what_is_attended_adds_up_wherever_a_prompt_is_cut(start: int, first: int, second: int) -> None:
    middle, end = start + first, start + first + second
    assert attended_between(start, middle) + attended_between(middle, end) == attended_between(start, end)


def test_a_step_costs_the_sum_of_its_terms() -> None:
    work = Work(tokens=100, attended=5050, decodes=3, context=900)
    assert COST.of(work) == pytest.approx(0.01 + 0.1 + 0.00505 + 0.006 + 0.009)


def test_prefill_costs_what_its_steps_cost() -> None:
    steps = [Work.prefill(64, 164), Work.prefill(164, 264), Work.prefill(264, 300)]
    assert COST.prefill_s(64, 300, 100) == pytest.approx(sum(map(COST.of, steps)))
    assert COST.prefill_s(64, 64, 100) == 0


def test_late_tokens_cost_more_than_early_ones() -> None:
    assert COST.marginal_s(2048, 2064) - COST.marginal_s(0, 16) == pytest.approx(16 * 2048 * 1e-6)


def test_a_slower_machine_takes_longer_for_everything() -> None:
    work = Work(100, 5050, 3, 900)
    assert COST.scaled(2.5).of(work) == pytest.approx(2.5 * COST.of(work))


def test_a_load_waits_for_the_queue_or_the_latency_whichever_is_longer() -> None:
    line = LoadCost(latency_s=0.02, bytes_per_s=1e6)
    assert line.load_s(500_000) == pytest.approx(0.52)
    assert LoadCost(0.02, 1e6, queue_s=0.3).load_s(500_000) == pytest.approx(0.8)
    assert LoadCost(0.02, 1e6, queue_s=0.01).load_s(500_000) == pytest.approx(0.52)


def test_for_nothing_a_load_waits_for_the_queue_alone() -> None:
    assert LoadCost(0.02, 1e6, queue_s=0.3).load_s(0) == 0.3
    assert LoadCost(0.02, 1e6).load_s(0) == 0
