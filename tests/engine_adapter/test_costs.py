from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from engine_adapter.engine.costs import MOST_BLOCKS_ON_WAY, CostBook, KnownCosts
from kvstore.seams import Offer, Transfer
from policies.cost_model import LoadCost, Work
from policies.lines import LineState
from policies.steps import Step

BLOCK_BYTES = 1_000_000
BLOCK_TOKENS = 16
OFFER = Offer("disk", BLOCK_TOKENS, BLOCK_TOKENS, BLOCK_BYTES, 2**40, first_token=0)


def book(line: LineState | None = None, token_s: float | None = None, **options: object) -> CostBook:
    """Return a book that knows the line of ``disk``, and that a token takes ``token_s`` to compute."""
    steps = () if token_s is None else tuple(Step(Work(num, 0.0), num * token_s) for num in (1, 32, 512))
    known = KnownCosts(steps, {"disk": line} if line else {})
    costs = CostBook(BLOCK_BYTES, known=known, **options)  # type: ignore[arg-type]
    costs.loads(0.0)
    return costs


def num_with_room(costs: CostBook, tier: str = "disk") -> int:
    """Return how many blocks may be on their way at a time."""
    for number in count():
        if number > 10_000 or not costs.has_room(tier):
            return number
        costs.asked(tier, number, 0.0)
    raise AssertionError


def test_of_a_tier_that_is_unknown_a_few_blocks_may_be_asked_for() -> None:
    assert 2 <= num_with_room(book()) <= 8


def test_the_window_holds_what_the_line_does_and_what_comes_during_a_step() -> None:
    least = num_with_room(book())
    line = LineState(latency_s=0.05, bytes_per_s=100 * BLOCK_BYTES)
    # Twice 0.05 s and a step of 512 tokens of 0.1 ms, at 100 blocks a second.
    expected = least + 100 * (2 * 0.05 + 512 * 1e-4)
    assert num_with_room(book(line, token_s=1e-4, chunk_tokens=512)) == pytest.approx(expected, abs=1)


def test_the_window_is_bounded_for_all_of_it_needs_memory() -> None:
    assert num_with_room(book(LineState(1.0, 1e12), token_s=1e-3)) == MOST_BLOCKS_ON_WAY


def test_room_is_there_again_when_loads_end_or_are_given_up() -> None:
    costs = book()
    num = num_with_room(costs)
    assert not costs.has_room("disk")
    costs.ended("disk", 0)
    assert costs.has_room("disk")
    costs.asked("disk", num, 0.0)
    assert not costs.has_room("disk")
    costs.given_up("disk", num, 0.0)
    assert costs.has_room("disk")


def test_our_own_memory_has_no_line() -> None:
    costs = CostBook(BLOCK_BYTES, memory_tier="host")
    assert "host" not in costs.loads(0.0)
    costs.note_copy(0.001, 0.0)
    assert costs.loads(0.0)["host"].load_s(BLOCK_BYTES) == pytest.approx(0.001)
    assert costs.has_room("host")
    assert costs.stale(1e9) == frozenset()


def test_a_line_is_learnt_from_transfers() -> None:
    costs = book()
    assert costs.loads(0.0) == {}
    for burst in range(3):
        for number in range(1, 33):
            asked_s = 10.0 * burst
            arrived_s = asked_s + 0.02 + number * 0.01
            costs.note_transfer(Transfer("disk", asked_s, arrived_s, 500, BLOCK_BYTES, 0.0))
    cost = costs.loads(100.0)["disk"]
    assert cost.bytes_per_s == pytest.approx(100 * BLOCK_BYTES, rel=0.15)
    assert cost.latency_s == pytest.approx(0.02, rel=0.2)
    assert costs.stale(21.0) == frozenset()
    assert costs.stale(100.0) == {"disk"}


def test_what_steps_cost_is_learnt_from_steps() -> None:
    costs = book()
    assert costs.compute() is None
    costs.note_step(Work.prefill(0, 512), 0.5, 1.0)
    cost = costs.compute()
    assert cost is not None
    assert cost.prefill_s(0, 512, 512) == pytest.approx(0.5)


def test_what_is_loaded_beside_a_step_and_copied_after_it_takes_time_from_computing() -> None:
    costs = book()
    for ended_s in range(1, 40):
        num_blocks = 20 * (ended_s % 2)
        for _ in range(num_blocks):
            costs.note_transfer(Transfer("disk", ended_s - 0.9, ended_s - 0.1, 500, BLOCK_BYTES, 0.0))
        for _ in range(20 - num_blocks):  # before the step
            costs.note_transfer(Transfer("disk", ended_s - 0.9, ended_s - 0.7, 500, BLOCK_BYTES, 0.0))
        costs.note_step(Work.prefill(0, 512), 0.5 + 0.005 * num_blocks, float(ended_s))
    cost = costs.compute()
    assert cost is not None
    assert cost.prefill_s(0, 512, 512) == pytest.approx(0.5, rel=0.01)
    assert cost.loaded_byte_s == pytest.approx(0.005 / BLOCK_BYTES, rel=0.05)

    costs.note_copy(0.001, 40.0)
    cost = costs.compute()
    assert cost is not None
    assert cost.loaded_byte_s == pytest.approx(0.006 / BLOCK_BYTES, rel=0.05)


def test_a_load_is_overdue_after_several_times_what_it_should_take() -> None:
    assert book().overdue_s("disk", 0.0) == float("inf")
    should_take_s = 0.02 + 0.01
    overdue_s = book(LineState(0.02, 100 * BLOCK_BYTES)).overdue_s("disk", 0.0)
    assert 2 * should_take_s < overdue_s < 1.0


def test_what_is_known_is_where_the_next_run_begins() -> None:
    first = book(LineState(0.02, 1e8), token_s=1e-3)
    first.note_step(Work.prefill(0, 128), 0.2, 1.0)
    second = CostBook(BLOCK_BYTES, known=first.known())
    assert second.known() == first.known()
    assert second.loads(0.0)["disk"] == LoadCost(0.02, 1e8)


def never_faster(line: LineState, first_token: int | None, tier: str = "disk") -> bool:
    offer = replace(OFFER, first_token=first_token, tier=tier)
    return book(line, token_s=1e-3).is_never_faster(offer)


@pytest.mark.parametrize(
    ("latency_s", "block_s", "first_token", "is_never"),
    [
        (0.0, 0.015, 0, False),  # a block of 16 tokens takes 16 ms to compute
        (0.0, 0.017, 0, True),
        (0.0, 0.017, 16, False),  # but with the block before it 32 ms
        (0.0, 0.031, 16, False),
        (0.0, 0.033, 16, True),
        (0.1, 0.015, 0, False),  # late alone, and yet the line is kept for less long than the device
        (0.1, 0.017, 64, True),  # 117 ms against 80
        (0.1, 0.017, 112, False),  # 117 ms against 128
    ],
)
def test_a_block_is_never_faster_to_load_when_even_the_whole_prompt_up_to_it_is_computed_before(
    latency_s: float, block_s: float, first_token: int, *, is_never: bool
) -> None:
    assert never_faster(LineState(latency_s, BLOCK_BYTES / block_s), first_token) is is_never


def test_what_is_not_known_is_stored() -> None:
    hopeless = LineState(10.0, 1.0)
    assert never_faster(hopeless, 0)
    assert not never_faster(hopeless, None)
    assert not never_faster(hopeless, 0, tier="redis")
    assert not book(hopeless).is_never_faster(OFFER)
