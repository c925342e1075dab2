from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
import torch

from backends.kv_shape import KVShape
from engine_adapter.engine.ownership import Loads, Owner, Ownership
from engine_adapter.engine.planner import NamedPolicy, Order, Planner
from engine_adapter.engine.request import Mode, Request
from engine_adapter.engine.sequence import Sequence
from kvstore.clock import Clock
from kvstore.leases import Hit
from policies.lines import LineState
from policies.planning import READY, Choice, Plan, PlanRequest, Prediction
from policies.reload import AlwaysCompute, AlwaysLoad, Static, Timeout
from tests.engine_adapter.believing import believing
from tests.engine_adapter.test_takeover import HandDriven

SHAPE = KVShape(num_layers=1, num_kv_heads=1, head_dim=16, block_tokens=8, dtype=torch.float32)
TOKEN_S = 1e-3
BLOCK_S = 8 * TOKEN_S


class Recording:
    """Does what another policy does, and remembers what it was asked."""

    weighs_costs = False

    def __init__(self, policy: Any) -> None:
        self.asked: list[PlanRequest] = []
        self._policy = policy

    def plan(self, request: PlanRequest) -> Plan:
        self.asked.append(request)
        return cast("Plan", self._policy.plan(request))


class Desk:
    """A planner, its clock, and sequences whose loads report when a test says so."""

    def __init__(self, policy: Any = None) -> None:
        self.now_s = 1000.0
        self.policy = Recording(policy or AlwaysLoad())
        line = LineState(1e-3, SHAPE.block_bytes / BLOCK_S)
        self.costs = believing(TOKEN_S, {"disk": line})(SHAPE.block_bytes, None)
        self.store = HandDriven()
        clock = Clock(monotonic_s=lambda: self.now_s)
        self.planner = Planner(NamedPolicy("under test", self.policy), self.costs, clock, SHAPE, 512)
        self._loads = Loads(cast("Any", self.store), self.costs, clock, 10.0, lambda: None)
        self._num_sequences = 0

    def sequence(self, tiers: Seq[str | None], mode: Mode = Mode.SERVE) -> Sequence:
        """Return a sequence of whole blocks, held by ``tiers``, and 3 tokens more."""
        request, self._num_sequences = Request([1] * (len(tiers) * 8 + 3)), self._num_sequences + 1
        sequence = Sequence(
            self._num_sequences, request, lambda _event: None, cast("Any", None), self.now_s, mode
        )
        self.hold(sequence, tiers)
        return sequence

    def hold(self, sequence: Sequence, tiers: Seq[str | None]) -> None:
        """Let ``tiers`` hold the whole blocks of a sequence that has none yet."""
        sequence.ownership = Ownership(len(tiers), self._loads)
        sequence.ownership.offer(Hit([], tuple(tiers), [], self.now_s + 60, lambda _records: None))

    def review(self, *sequences: Sequence, num_waiting: int = 0) -> Order:
        order = Order(list(sequences), num_waiting)
        for sequence in sequences:
            self.planner.review(sequence, order)
        return order


def decoding(desk: Desk) -> Sequence:
    sequence = desk.sequence([])
    sequence.num_computed = sequence.num_prefill
    return sequence


def test_what_there_is_to_load_is_planned_for_and_asked_for() -> None:
    desk = Desk()
    sequence = desk.sequence([None, "disk", "disk"])
    desk.review(sequence, num_waiting=4)

    (request,) = desk.policy.asked
    assert list(request.tiers) == [None, "disk", "disk"]
    assert (request.prompt_tokens, request.block_tokens, request.num_waiting) == (27, 8, 4)
    assert request.loads["disk"].latency_s == pytest.approx(1e-3)
    assert {ticket.index for ticket in desk.store.tickets} == {1, 2}
    assert sequence.planning is not None
    assert sequence.planning.tokens_by_tier == {"disk": 16}


def test_without_anything_to_load_nothing_is_planned() -> None:
    desk = Desk()
    desk.review(desk.sequence([None, None]), decoding(desk))
    assert desk.policy.asked == []


def test_a_plan_is_kept_for_a_moment_and_reviewed_when_time_passes_or_computing_moves() -> None:
    desk = Desk(AlwaysCompute())
    sequence = desk.sequence(["disk"] * 8)
    desk.review(sequence)
    desk.now_s += 0.0001
    desk.review(sequence)
    assert len(desk.policy.asked) == 1

    desk.now_s += 0.01
    desk.review(sequence)
    assert len(desk.policy.asked) == 2
    assert desk.policy.asked[1].elapsed_s == pytest.approx(0.0101)
    assert desk.policy.asked[1].previous is not None

    sequence.num_computed = 11
    desk.review(sequence)
    assert list(desk.policy.asked[2].tiers) == [READY, None, *["disk"] * 6]
    assert desk.policy.asked[2].position == 11


@pytest.mark.parametrize("policy", [Timeout(0.5), Static(8)])
def test_what_comes_back_is_planned_for_as_if_it_had_just_come(policy: Any) -> None:
    desk = Desk(policy)
    sequence = desk.sequence(["disk"] * 2)
    desk.review(sequence)
    first_s, desk.now_s = desk.now_s, desk.now_s + 20

    sequence.tokens += [1] * 16
    sequence.leave_tiers()
    sequence.restart()
    desk.hold(sequence, ["disk"] * 4)
    desk.review(sequence)
    assert (desk.policy.asked[1].elapsed_s, desk.policy.asked[1].previous) == (0.0, None)
    assert [sequence.ownership.owner(index) for index in range(4)] == [Owner.LOAD] * 4

    desk.now_s += 0.1
    desk.review(sequence)
    assert desk.policy.asked[2].elapsed_s == pytest.approx(0.1)
    assert sequence.planning is not None
    assert sequence.planning.first_s == first_s


def test_plans_take_a_small_share_of_the_time_however_many_are_made() -> None:
    class Slow:
        weighs_costs = False

        def plan(self, request: PlanRequest) -> Plan:
            desk.now_s += 0.001
            return AlwaysLoad().plan(request)

    desk = Desk(Slow())
    sequences = [desk.sequence(["disk"] * 2) for _ in range(8)]
    began_s = desk.now_s
    while desk.now_s < began_s + 4:
        desk.review(*sequences)
        desk.now_s += 0.001
    # 4 % of four seconds, a plan taking a millisecond.
    assert 150 < len(desk.policy.asked) <= 168


def test_one_plan_that_took_long_does_not_put_the_next_off_for_long() -> None:
    class OnceSlow:
        weighs_costs = False

        def plan(self, request: PlanRequest) -> Plan:
            desk.now_s += 0.001 if len(desk.policy.asked) > 1 else 30.0
            return AlwaysLoad().plan(request)

    desk = Desk(OnceSlow())
    sequence = desk.sequence(["disk"] * 2)
    desk.review(sequence)
    assert (desk.planner.next_review_s([sequence]) or 0) <= desk.now_s + 0.25


def test_a_review_is_due_while_loads_are_on_their_way() -> None:
    desk = Desk()
    sequence = desk.sequence(["disk"] * 2)
    assert desk.planner.next_review_s([sequence]) is None
    desk.review(sequence)
    due_s = desk.planner.next_review_s([sequence])
    assert due_s is not None
    assert desk.now_s < due_s < desk.now_s + 0.1


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.VERIFY])
def test_what_is_not_served_is_planned_for_once_and_nothing_is_asked_for(mode: Mode) -> None:
    desk = Desk()
    sequence = desk.sequence(["disk"] * 2, mode)
    sequence.is_served = False
    for _ in range(3):
        desk.review(sequence)
        desk.now_s += 1
    assert len(desk.policy.asked) == 1
    assert desk.store.tickets == []


def test_later_ones_stand_behind_those_before_them_on_the_device_and_on_the_line() -> None:
    desk = Desk(AlwaysCompute())
    desk.review(desk.sequence(["disk"] * 4), desk.sequence(["disk"] * 4))
    assert [request.compute_queue_s for request in desk.policy.asked] == [0, pytest.approx(35 * TOKEN_S)]

    loading = Desk(AlwaysLoad())
    loading.review(loading.sequence(["disk"] * 20), loading.sequence(["disk"] * 4))
    first, second = (request.loads["disk"].queue_s for request in loading.policy.asked)
    assert first == 0
    assert second == pytest.approx(20 * BLOCK_S, rel=0.1)


def test_the_device_costs_more_the_more_others_wait_for_it() -> None:
    desk = Desk()
    desk.review(
        desk.sequence([None]), decoding(desk), decoding(desk), desk.sequence(["disk"]), desk.sequence([None])
    )
    (request,) = desk.policy.asked
    assert request.device_price == 2 * 0.25 + 1
    assert request.num_running == 5


def test_a_line_costs_more_the_more_later_ones_wait_for_it_alone() -> None:
    desk = Desk()
    first, second, third = (desk.sequence(["disk"] * 60) for _ in range(3))
    desk.review(first, second, third)
    assert desk.policy.asked[0].line_prices == {}
    desk.now_s += 10
    desk.review(first, second, third)
    assert [dict(request.line_prices) for request in desk.policy.asked[3:]] == [{"disk": 2}, {"disk": 1}, {}]


def test_what_one_keeps_the_device_busy_for_is_what_is_left_of_it() -> None:
    desk = Desk(AlwaysCompute())
    sequence = desk.sequence(["disk"] * 8)
    assert desk.review(sequence).compute_s == pytest.approx(67 * TOKEN_S)
    sequence.num_computed = 64
    sequence.ownership.begin_computing(0, 8)
    assert desk.review(sequence).compute_s == pytest.approx(3 * TOKEN_S)


def test_what_is_only_observed_keeps_the_device_busy_with_all_of_it() -> None:
    desk = Desk(AlwaysLoad())
    sequence = desk.sequence(["disk"] * 8, Mode.OBSERVE)
    assert desk.review(sequence).compute_s == pytest.approx(67 * TOKEN_S)


class Failing:
    def plan(self, _request: PlanRequest) -> Plan:
        raise ZeroDivisionError("its own")


class TooShort:
    def plan(self, request: PlanRequest) -> Plan:
        plan = AlwaysLoad().plan(request)
        return Plan(plan.choices[:-1], plan.prediction, plan.reason)


@dataclass
class Predicting:
    prediction: Any

    def plan(self, request: PlanRequest) -> Plan:
        return replace(AlwaysLoad().plan(request), prediction=self.prediction)


@pytest.mark.parametrize(
    ("policy", "fault"),
    [
        (Failing(), "ZeroDivisionError: its own"),
        (TooShort(), "3 choices for 4 blocks"),
        (Predicting(Prediction(1, 1, 1, math.inf, 1)), "it predicts times that cannot be"),
        (Predicting(Prediction(math.nan, 1, 1, 1, 1)), "it predicts times that cannot be"),
        (Predicting(Prediction(1, 1, 1, -1, 1)), "it predicts times that cannot be"),
        (Predicting(Prediction(1, 1, math.nan, 1, 1)), "it predicts times that cannot be"),
        (Predicting(None), "AttributeError: 'NoneType' object has no attribute 'ttft_s'"),
    ],
)
def test_a_policy_that_fails_costs_the_loads_and_nothing_else(policy: Any, fault: str) -> None:
    desk = Desk(policy)
    sequence = desk.sequence(["disk"] * 4)
    desk.review(sequence)

    assert sequence.planning is not None
    assert set(sequence.planning.first.choices) == {Choice.COMPUTE}
    assert sequence.planning.first.reason == f"computed, for the policy failed: {fault}"
    assert desk.store.tickets == []


def test_computing_waits_for_an_answer_a_small_part_of_what_it_takes() -> None:
    desk = Desk()
    assert 0 < desk.planner.answer_s(desk.sequence([None] * 8)) < 0.1 * 67 * TOKEN_S


def test_what_is_imagined_is_planned_as_if_it_were_alone() -> None:
    desk = Desk()
    request = desk.planner.imagine(["disk", None], 19, 2)
    assert (list(request.tiers), request.prompt_tokens, request.num_waiting) == (["disk", None], 19, 2)
    assert request.compute_queue_s == 0
