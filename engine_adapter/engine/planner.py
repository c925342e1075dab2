"""Asks the reload policy what to load and what to compute, again and again until a prompt is complete."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from backends.kv_shape import KVShape
from engine_adapter.engine.costs import CostBook
from engine_adapter.engine.ownership import Owner
from engine_adapter.engine.pace import calm_s, decoding
from engine_adapter.engine.plans import Planning, chosen_by
from engine_adapter.engine.sequence import Sequence
from kvstore.clock import Clock
from policies.cost_model import ComputeCost, Work
from policies.planning import READY, Plan, PlanRequest, ReloadPolicy, is_loadable
from policies.reload import AlwaysCompute

_log = logging.getLogger(__name__)

_UNKNOWN = ComputeCost(0.0, 1e-3, 0.0)
# A late first token is felt more than tokens that come a little later.
_DECODE_WEIGHT = 0.25
_REVIEW_SHARE = 0.01
_LEAST_REVIEW_S = 0.002
# Of the time of the engine's thread, at most so much goes into plans.
_PLANNING_SHARE = 0.04
_MOST_REVIEW_S = 60.0
# A pause of the machine in the middle of planning is no reason to plan late.
_PATIENCE_S = 0.25
_LONGEST_SHARE = 0.05
_ANSWER_SHARE = 0.03


class NamedPolicy(NamedTuple):
    """A reload policy, and the name under which it is told."""

    name: str
    policy: ReloadPolicy


@dataclass(slots=True)
class Order:
    """The running sequences in the order in which they are served, and what the first of them take up.

    ``compute_s`` is how long those that were reviewed keep the device busy, ``unasked_bytes`` what they
    will still ask of each tier.
    """

    running: Seq[Sequence]
    num_waiting: int
    compute_s: float = 0.0
    unasked_bytes: Counter[str] = field(default_factory=Counter)

    def behind(self, sequence: Sequence) -> Seq[Sequence]:
        """Return those that are served after ``sequence``."""
        return self.running[self.running.index(sequence) + 1 :]


class Planner:
    """Plans for the running sequences, in the order in which they are served. For the engine's thread."""

    def __init__(
        self, policy: NamedPolicy, costs: CostBook, clock: Clock, shape: KVShape, chunk_tokens: int
    ) -> None:
        self.policy = policy
        self.costs = costs
        self._clock = clock
        self._block_tokens = shape.block_tokens
        self._block_bytes = shape.block_bytes
        self._chunk_tokens = chunk_tokens

    def review(self, sequence: Sequence, order: Order) -> None:
        """Plan for ``sequence`` if its prompt is incomplete and has blocks to load, and start loads.

        A plan is kept while a small part of its predicted time passes and computing goes no further, and
        while plans for all would take too much time: one for a long prompt takes long.
        """
        if sequence.is_decoding:
            return
        now_s = self._clock.monotonic_s()
        if self._is_due(sequence, now_s):
            request = self._request(sequence, now_s)
            planning = self._plan(sequence, self._in_order(request, sequence, order), now_s)
            num_planned = max(1, sum(map(_is_reviewed, order.running)))
            worth_s = num_planned * (self._clock.monotonic_s() - now_s) / _PLANNING_SHARE
            planning.paid_s = now_s + min(worth_s, max(_PATIENCE_S, _longest_kept_s(planning)))
        sequence.ownership.start()
        order.compute_s += self._remaining_s(sequence)
        for tier, num in sequence.ownership.num_wanted.items():
            order.unasked_bytes[tier] += num * self._block_bytes

    def next_review_s(self, running: Seq[Sequence]) -> float | None:
        """Return when a plan is due for review if nothing happens before; ``None``: never."""
        reviewed = (sequence.planning for sequence in running if _is_reviewed(sequence))
        return min((_due_s(planning) for planning in reviewed if planning), default=None)

    def answer_s(self, sequence: Sequence) -> float:
        """Return how long computing may wait for the answer of a medium, which may save much of it.

        That is never more than a small share of what computing takes.
        """
        cost = self.costs.compute() or _UNKNOWN
        compute_s = cost.prefill_s(sequence.num_computed, sequence.num_prefill, self._chunk_tokens)
        return _ANSWER_SHARE * compute_s

    def imagine(self, tiers: Seq[str | None], prompt_tokens: int, num_waiting: int) -> PlanRequest:
        """Return what a plan for a prompt would be made from now, were it alone."""
        request = self._about(tiers, prompt_tokens, self._clock.monotonic_s())
        return replace(request, num_waiting=num_waiting)

    def _is_due(self, sequence: Sequence, now_s: float) -> bool:
        is_settled = not sequence.is_served and sequence.planning is not None
        if is_settled or not sequence.ownership.is_open(self._block_at(sequence)):
            return False
        if (planning := sequence.planning) is None or planning.previous is None:
            return True
        has_moved = sequence.num_computed != sequence.planned_at
        return now_s >= (planning.paid_s if has_moved else _due_s(planning))

    def _plan(self, sequence: Sequence, request: PlanRequest, now_s: float) -> Planning:
        plan = self.decide(request)
        sequence.planned_at = sequence.num_computed
        if sequence.planning is None:
            found = Counter(filter(is_loadable, request.tiers))
            tokens = {tier: num * self._block_tokens for tier, num in found.items()}
            chosen = chosen_by(plan, request.tiers)
            sequence.planning = Planning(self.policy.name, chosen, plan, plan, now_s, now_s, tokens)
        else:
            sequence.planning.again(plan, now_s)
        if sequence.is_served:
            first = -(-sequence.num_computed // self._block_tokens)
            sequence.ownership.follow(plan.choices, plan.probes, first)
        return sequence.planning

    def decide(self, request: PlanRequest) -> Plan:
        """Return the policy's plan; one that fails has everything computed."""
        try:
            plan = self.policy.policy.plan(request)
            if not (fault := _fault_of(plan, len(request.tiers))):
                return plan
        except Exception as error:  # noqa: BLE001 - whatever it is, the request goes on without loads
            fault = f"{type(error).__name__}: {error}"
        _log.error("reload policy %s failed: %s", self.policy.name, fault)
        return replace(AlwaysCompute().plan(request), reason=f"computed, for the policy failed: {fault}")

    def _request(self, sequence: Sequence, now_s: float) -> PlanRequest:
        planning, ownership = sequence.planning, sequence.ownership
        position = sequence.num_computed
        tiers = list(ownership.tiers)
        done = position // self._block_tokens
        tiers[:done] = [READY] * min(done, len(tiers))
        if position % self._block_tokens and done < len(tiers):
            tiers[done] = None
        return replace(
            self._about(tiers, sequence.num_prefill, now_s),
            in_flight=ownership.in_flight,
            position=position,
            elapsed_s=planning.elapsed_s(now_s) if planning else 0.0,
            previous=planning.previous if planning else None,
        )

    def _about(self, tiers: Seq[str | None], prompt_tokens: int, now_s: float) -> PlanRequest:
        return PlanRequest(
            tiers=tiers,
            prompt_tokens=prompt_tokens,
            block_tokens=self._block_tokens,
            block_bytes=self._block_bytes,
            compute=self.costs.compute() or _UNKNOWN,
            loads=self.costs.loads(now_s),
            chunk_tokens=self._chunk_tokens,
            stale=self.costs.stale(now_s),
        )

    def _remaining_s(self, sequence: Sequence) -> float:
        """Return how long a sequence that goes first keeps the device busy."""
        cost = self.costs.compute() or _UNKNOWN
        all_s = cost.prefill_s(sequence.num_computed, sequence.num_prefill, self._chunk_tokens)
        if sequence.planning is None or not sequence.is_served:
            return all_s
        return min(all_s, sequence.planning.latest.prediction.compute_s)

    def _in_order(self, request: PlanRequest, sequence: Sequence, order: Order) -> PlanRequest:
        """Return the request as it stands behind those that are served before it, and before others."""
        loads = {
            tier: replace(cost, queue_s=cost.load_s(order.unasked_bytes[tier]))
            if order.unasked_bytes[tier]
            else cost
            for tier, cost in request.loads.items()
        }
        beside, compute = decoding(order.running), request.compute
        return replace(
            request,
            loads=loads,
            compute=replace(compute, step_s=compute.of(beside)) if beside.decodes else compute,
            chunk_tokens=self._chunk_beside(beside, compute),
            compute_queue_s=order.compute_s,
            device_price=self._device_price(sequence, order),
            line_prices=self._line_prices(sequence, order),
            num_waiting=order.num_waiting,
            num_running=len(order.running),
        )

    def _chunk_beside(self, beside: Work, compute: ComputeCost) -> int:
        """Return about how many tokens a step computes beside those that decode."""
        most_s = calm_s(compute, beside)
        fits = most_s / compute.token_s if compute.token_s else math.inf
        return max(1, int(min(fits, self._chunk_tokens)))

    def _device_price(self, sequence: Sequence, order: Order) -> float:
        """Return how many seconds others lose for each that this one computes.

        Sequences that decode wait for its steps, and so do later ones that have nothing to load.
        """
        num_decoding = sum(other.is_decoding for other in order.running)
        num_computing = sum(
            not other.is_decoding and not other.ownership.is_open(self._block_at(other))
            for other in order.behind(sequence)
        )
        return _DECODE_WEIGHT * num_decoding + num_computing

    def _line_prices(self, sequence: Sequence, order: Order) -> dict[str, float]:
        """Return how many later sequences wait for each tier, with nothing to compute meanwhile."""
        prices: Counter[str] = Counter()
        for other in order.behind(sequence):
            if other.ownership.owner(self._block_at(other)) is Owner.LOAD:
                prices.update(other.ownership.num_wanted.keys())
        return dict(prices)

    def _block_at(self, sequence: Sequence) -> int:
        return sequence.num_computed // self._block_tokens


def _fault_of(plan: Plan, num_blocks: int) -> str:
    """Return what makes a plan unfit to be followed; empty: nothing. Raises where it is no plan at all."""
    if len(plan.choices) != num_blocks:
        return f"{len(plan.choices)} choices for {num_blocks} blocks"
    prediction = plan.prediction
    times_s = (
        prediction.ttft_s, prediction.compute_s, prediction.load_s, prediction.if_computed_s,
        prediction.if_loaded_s,
    )  # fmt: skip
    if not all(math.isfinite(time_s) and time_s >= 0 for time_s in times_s):
        return "it predicts times that cannot be"
    tuple(plan.probes)
    return ""


def _is_reviewed(sequence: Sequence) -> bool:
    return not sequence.is_decoding and sequence.planning is not None and sequence.ownership.num_loading > 0


def _longest_kept_s(planning: Planning) -> float:
    return _LONGEST_SHARE * planning.latest.prediction.if_computed_s


def _due_s(planning: Planning) -> float:
    predicted_s = planning.latest.prediction.if_computed_s
    kept_s = min(_MOST_REVIEW_S, max(_LEAST_REVIEW_S, _REVIEW_SHARE * predicted_s))
    return max(planning.paid_s, planning.latest_s + kept_s)
