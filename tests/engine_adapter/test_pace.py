from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_adapter.engine.pace import Pace, calm_s
from policies.cost_model import ComputeCost, Work

BLOCK = 16
COST = ComputeCost(step_s=0.02, token_s=0.001, attended_s=0.0)


def pace(*, served: int = 0, loaded_s: float | None = None, cost: ComputeCost | None = COST) -> Pace:
    """Return the pace of a step in which ``served`` tokens complete a prompt, or one waits for loads."""
    made = Pace(cost, BLOCK)
    if served:
        made.add(0, served, is_served=True)
    if loaded_s is not None:
        made.awaits(loaded_s)
    return made


def test_as_much_as_may_be_is_computed_when_nobody_waits_for_the_end() -> None:
    assert pace().end(0, 512, 3) == 512


def test_without_costs_nothing_is_limited() -> None:
    assert pace(served=512, loaded_s=0.0, cost=None).end(0, 512, 1) == 512


@pytest.mark.parametrize(
    ("num_tokens", "num_behind", "num_computed"),
    [
        (19, 1, 19),  # the first token comes 19 ms later, a step of its own would cost 20
        (21, 1, 0),
        (39, 2, 39),  # it costs each of those behind 20
        (41, 2, 0),
    ],
)
def test_a_first_token_waits_for_others_no_longer_than_a_step_of_their_own_costs(
    num_tokens: int, num_behind: int, num_computed: int
) -> None:
    assert pace(served=1).end(0, num_tokens, num_behind) == num_computed


def test_nobody_waits_for_others_longer_than_two_steps_cost() -> None:
    assert pace(served=1).end(0, 41, 99) == 0
    assert pace(loaded_s=0.1).end(0, 141, 99) == 96
    step = pace(served=1)
    assert step.end(0, 30, 99) == 30
    step.add(0, 30, is_served=False)
    assert step.end(0, 11, 99) == 0
    assert step.end(0, 10, 99) == 10


def test_each_of_those_who_are_served_counts() -> None:
    both = pace(served=1)
    both.add(0, 1, is_served=True)
    assert both.end(0, 19, 1) == 0
    assert both.end(0, 19, 2) == 19


def test_a_chunk_ends_with_the_loads_that_an_earlier_sequence_waits_for() -> None:
    # 100 ms are the time of 100 tokens, which are 6 blocks and a part.
    assert pace(loaded_s=0.1).end(0, 512, 1) == 96
    assert pace(loaded_s=0.1).end(40, 512, 1) == 128
    assert pace(loaded_s=10.0).end(0, 512, 1) == 512


def test_a_chunk_that_is_hardly_longer_than_the_loads_is_left_whole() -> None:
    assert pace(loaded_s=0.1).end(0, 119, 1) == 119


def test_a_step_is_not_shorter_than_what_it_costs_for_itself() -> None:
    assert pace(loaded_s=0.0).end(0, 100, 1) == 16
    slow = ComputeCost(step_s=0.1, token_s=0.001, attended_s=0.0)
    assert pace(loaded_s=0.0, cost=slow).end(0, 512, 1) == 96


def test_a_step_that_is_cut_computes_an_eighth_of_what_it_could() -> None:
    assert pace(loaded_s=0.0).end(0, 512, 1) == 64


def test_the_first_loads_to_end_say_where_a_chunk_is_cut_and_each_that_waits_counts() -> None:
    step = pace(loaded_s=0.1)
    step.awaits(0.2)
    assert step.end(0, 512, 1) == 96
    # 105 tokens make one wait 5 ms and the other not at all; twelve such are as much as three steps.
    assert step.end(0, 119, 1) == 119
    both = pace(loaded_s=0.1)
    both.awaits(0.1)
    assert both.end(0, 111, 1) == 96
    assert both.end(0, 109, 1) == 109


def test_at_least_one_block_is_computed_when_nothing_else_is() -> None:
    slow = ComputeCost(step_s=0.001, token_s=0.001, attended_s=0.0)
    assert pace(loaded_s=0.0, cost=slow).end(0, 100, 1) == 16
    assert pace(loaded_s=0.0, cost=slow).end(10, 100, 1) == 16


def test_beside_other_chunks_what_does_not_fit_is_left_for_the_next_step() -> None:
    step = pace(loaded_s=0.1)
    step.add(0, 96, is_served=False)
    assert step.end(0, 512, 1) == 0


@given(
    st.integers(0, 2000),
    st.integers(0, 512),
    st.integers(1, 9),
    st.floats(0, 1),
    st.floats(0, 0.1),
    st.floats(0, 0.01),
)
def test_a_step_with_nothing_else_in_it_always_goes_on(
    start: int, num: int, num_behind: int, loaded_s: float, step_s: float, token_s: float
) -> None:
    cost = ComputeCost(step_s, token_s, attended_s=1e-6)
    end = pace(loaded_s=loaded_s, cost=cost).end(start, start + num, num_behind)
    assert start <= end <= start + num
    assert end > start or not num


def steps(num_tokens: int, most_s: float, cost: ComputeCost = COST) -> list[tuple[int, int]]:
    """Return the steps in which a prompt is computed beside others that decode."""
    made, start = list[tuple[int, int]](), 0
    while start < num_tokens:
        end = Pace(cost, BLOCK, most_s).end(start, min(num_tokens, start + 512), 1)
        made.append((start, end))
        start = end
    return made


def test_beside_those_who_decode_a_long_prompt_is_cut_into_steps_of_equal_length() -> None:
    growing = ComputeCost(step_s=0.05, token_s=0.0015, attended_s=1e-7)
    lengths_s = [0.05 + growing.marginal_s(start, end) for start, end in steps(2000, 0.15, growing)]

    assert max(lengths_s) <= 0.05 + 0.15
    assert max(lengths_s) <= 1.5 * min(lengths_s)


def test_what_fits_beside_those_who_decode_is_left_whole() -> None:
    assert steps(150, 0.15) == [(0, 150)]
    assert steps(151, 0.15) == [(0, 75), (75, 151)]


def test_beside_those_who_decode_something_is_computed_however_slow() -> None:
    assert steps(40, 0.0) == [(0, 16), (16, 32), (32, 40)]


def test_what_one_chunk_leaves_of_the_time_goes_to_the_next() -> None:
    step = Pace(COST, BLOCK, 0.1505)
    step.add(0, 100, is_served=False)
    assert step.end(0, 512, 1) == 50
    step.add(0, 50, is_served=False)
    assert step.end(0, 512, 1) == 0


def test_a_step_may_be_a_few_times_as_long_as_decoding_alone() -> None:
    cost = ComputeCost(step_s=0.02, token_s=0.001, attended_s=0.0, decode_s=0.005, context_s=1e-5)
    assert calm_s(cost, Work(0, 0.0, 2, 1000)) == pytest.approx(3 * (0.02 + 0.01 + 0.01))
    assert calm_s(cost, Work(0, 0.0)) == calm_s(None, Work(0, 0.0, 2, 1000)) == math.inf
