from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.cost_model import ComputeCost, Work
from policies.steps import Step, StepCosts

SMALL = ComputeCost(step_s=4e-3, token_s=5e-5, attended_s=6e-9, decode_s=1e-4, context_s=2e-8)
LARGE = ComputeCost(step_s=2e-2, token_s=1e-3, attended_s=1e-6, decode_s=2e-3, context_s=1e-6)
RANGES = [(0, 16), (0, 512), (0, 2048), (1024, 2048), (1500, 1516), (3000, 3512)]


def works(random: Random, num: int) -> Iterator[Work]:
    """Yield the steps of requests that come one by one and in batches, in chunks of up to 512 tokens."""
    for _ in range(num):
        start = random.choice([0, 16, 256, 512, 1024, 2048, 3000])
        prefill = Work.prefill(start, start + random.choice([1, 8, 40, 128, 500, 512]))
        num_decodes = random.choice([0, 0, 1, 4, 8])
        context = num_decodes * random.randrange(50, 3000)
        if random.random() < 0.3 and num_decodes:
            yield Work(0, 0.0, num_decodes, context)
        else:
            yield replace(prefill, decodes=num_decodes, context=context)


def made(cost: ComputeCost, num: int, *, seed: int = 1, noise: float = 0.1, factor: float = 1) -> list[Step]:
    random = Random(seed)
    return [
        Step(work, factor * cost.of(work) * random.uniform(1 - noise, 1 + noise))
        for work in works(random, num)
    ]


def learnt(steps: list[Step]) -> StepCosts:
    costs = StepCosts()
    for step in steps:
        costs.learn([step])
        costs.cost()
    return costs


def prefill_s(costs: StepCosts, start: int, end: int) -> float:
    cost = costs.cost()
    assert cost is not None
    return cost.prefill_s(start, end, 512)


def test_before_the_first_step_nothing_is_known() -> None:
    assert StepCosts().cost() is None


def test_one_step_tells_what_its_like_costs() -> None:
    costs = StepCosts()
    costs.learn([Step(Work.prefill(0, 512), 0.5)])
    assert prefill_s(costs, 0, 512) == pytest.approx(0.5)


@pytest.mark.parametrize("cost", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("seed", range(5))
def test_prefill_of_any_size_is_recovered_from_noisy_steps(cost: ComputeCost, seed: int) -> None:
    costs = learnt(made(cost, 150, seed=seed))
    for start, end in RANGES:
        assert prefill_s(costs, start, end) == pytest.approx(cost.prefill_s(start, end, 512), rel=0.15)


def test_decoding_is_told_apart_from_prefill() -> None:
    costs = learnt(made(LARGE, 200, noise=0.02))
    alone = Work(0, 0.0, 8, 8000)
    cost = costs.cost()
    assert cost is not None
    assert cost.of(alone) == pytest.approx(LARGE.of(alone), rel=0.2)


@pytest.mark.parametrize("factor", [0.01, 30])
def test_one_odd_step_changes_nothing(factor: float) -> None:
    steps = made(LARGE, 100, noise=0.0)
    plain, odd = learnt(steps), learnt(steps)
    work = Work.prefill(512, 1024)
    odd.learn([Step(work, factor * LARGE.of(work))])
    for start, end in RANGES:
        assert prefill_s(odd, start, end) == pytest.approx(prefill_s(plain, start, end), rel=0.05)


def test_a_machine_that_becomes_twice_as_slow_is_followed_within_a_few_steps() -> None:
    costs = learnt(made(LARGE, 150, noise=0.05))
    costs.learn([Step(Work.prefill(s, s + 128), 2 * LARGE.of(Work.prefill(s, s + 128))) for s in range(5)])
    assert prefill_s(costs, 0, 2048) == pytest.approx(2 * LARGE.prefill_s(0, 2048, 512), rel=0.15)

    costs.learn([Step(Work.prefill(s, s + 128), LARGE.of(Work.prefill(s, s + 128))) for s in range(5)])
    assert prefill_s(costs, 0, 2048) == pytest.approx(LARGE.prefill_s(0, 2048, 512), rel=0.15)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4096), st.integers(0, 512), st.integers(0, 8), st.floats(1e-6, 10))))
def test_no_cost_is_ever_negative(steps: list[tuple[int, int, int, float]]) -> None:
    costs = learnt(
        [
            Step(replace(Work.prefill(start, start + num), decodes=decodes, context=decodes * start), took_s)
            for start, num, decodes, took_s in steps
        ]
    )
    cost = costs.cost()
    assert cost is None or min(astuple(cost)) >= 0


def test_steps_that_say_nothing_are_left_out() -> None:
    costs = StepCosts([Step(Work(0, 0.0), 1.0), Step(Work.prefill(0, 16), 0.0)])
    assert costs.cost() is None


def test_what_is_kept_is_bounded_and_one_step_of_each_kind() -> None:
    costs = StepCosts()
    costs.learn(Step(Work(2**tokens, float(2**reach)), 1.0) for tokens in range(20) for reach in range(20))
    assert len(costs.typical()) == 128


def test_a_new_run_begins_with_what_the_last_one_learnt() -> None:
    first = learnt(made(LARGE, 150))
    second = StepCosts(first.typical())
    for start, end in RANGES:
        assert prefill_s(second, start, end) == pytest.approx(prefill_s(first, start, end), rel=0.2)
