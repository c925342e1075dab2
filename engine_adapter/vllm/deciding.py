"""How many leading blocks of a hit to load: what loading and computing were found to take, and the policy."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine_adapter.engine.costs import CostBook
from engine_adapter.vllm.orders import Told
from policies.cost_model import ComputeCost, LoadCost, Work
from policies.leading import Leading, leading_blocks
from policies.lines import Arrival
from policies.planning import READY, PlanRequest, ReloadPolicy

_log = logging.getLogger(__name__)

_UNKNOWN_COMPUTE = ComputeCost(0.0, 1e-3, 0.0)
_UNKNOWN_LOAD = LoadCost(0.005, 500e6)
_PATIENCE_SHARE = 0.04
_USUAL, _GAIN_SHARE = 2.0, 0.5
_ANSWER_SHARE = 0.03
_LEAST_PATIENCE_S = 0.01
_LEAST_ANSWER_S = 0.005
_TELLING_RATIO = 4
_MOST_PLANNED = 64


@dataclass(frozen=True, slots=True)
class Sizes:
    """What costs are counted in."""

    block_tokens: int
    block_bytes: int
    chunk_tokens: int


class _Planned(NamedTuple):
    number: int
    work: Work
    at_s: float


class Decider:
    """Learns from each step and each load, and decides for each prompt. For the scheduler's thread alone."""

    def __init__(self, policy: ReloadPolicy, costs: CostBook, sizes: Sizes) -> None:
        self.costs = costs
        self.policy = policy
        self.sizes = sizes
        self._planned: deque[_Planned] = deque(maxlen=_MOST_PLANNED)
        self._silent: set[str] = set()
        self._num_planned = 0
        self._last_s = 0.0

    def decide(self, tiers: Sequence[str | None], num_ready: int, num_tokens: int, now_s: float) -> Leading:
        """Return how many blocks to load behind the first ``num_ready``; 0 if the policy fails."""
        request = PlanRequest(
            tiers=[*([READY] * num_ready), *map(self._heard, tiers[num_ready:])],
            prompt_tokens=num_tokens,
            block_tokens=self.sizes.block_tokens,
            block_bytes=self.sizes.block_bytes,
            compute=self._compute(),
            loads=self.costs.loads(now_s),
            chunk_tokens=self.sizes.chunk_tokens,
            position=num_ready * self.sizes.block_tokens,
            stale=self.costs.stale(now_s),
        )
        try:
            return leading_blocks(self.policy, request, _UNKNOWN_LOAD)
        except Exception:  # noqa: BLE001 - a policy may raise anything, and the request goes on without loads
            _log.exception("the reload policy failed: the prompt is computed")
            return Leading(0, 0.0, 0.0)

    def patience_s(self, leading: Leading) -> float:
        """Return how much longer than computing a load may take before it is given up.

        That is little, but twice what the first block was found to take.
        """
        gain_s = max(0.0, leading.if_computed_s - leading.ttft_s)
        usual_s = min(_USUAL * leading.first_s, _GAIN_SHARE * gain_s)
        return max(_LEAST_PATIENCE_S, _PATIENCE_SHARE * leading.if_computed_s, usual_s)

    def answer_s(self, num_tokens: int) -> float:
        """Return how long the answer of shared media may take: a small share of what computing takes."""
        cost = self._compute()
        return max(_LEAST_ANSWER_S, _ANSWER_SHARE * cost.prefill_s(0, num_tokens, self.sizes.chunk_tokens))

    def unheard(self, tiers: Sequence[str | None], now_s: float) -> frozenset[str]:
        """Return those of ``tiers`` of which nothing was heard for long, or ever."""
        known = self.costs.loads(now_s).keys() - self.costs.stale(now_s) - self._silent
        return frozenset(tier for tier in tiers if tier is not None and tier not in known)

    def learn_arrivals(self, arrivals: Mapping[str, Sequence[Arrival]]) -> None:
        """Take blocks in that were loaded to learn what that takes."""
        for tier, arrived in arrivals.items():
            self.costs.learn_arrivals(tier, arrived)
        self._silent -= arrivals.keys()

    def note_planned(self, work: Work, now_s: float) -> int:
        """Note that a step is about to be made; returns its number."""
        self._num_planned += 1
        self._planned.append(_Planned(self._num_planned, work, now_s))
        return self._num_planned

    def note_made(self, told: Told, now_s: float) -> None:
        """Note that a step is done, and what its workers tell."""
        self._learn_loads(told)
        while self._planned and self._planned[0].number <= told.number:
            number, work, at_s = self._planned.popleft()
            # Steps may be planned while the one before is made.
            took_s = now_s - max(at_s, self._last_s) - told.waited_s
            if number == told.number and (work.tokens or work.decodes):
                self.costs.note_step(work, took_s, now_s)
        self._last_s = now_s

    def _compute(self) -> ComputeCost:
        """Return what computing costs.

        From steps of one size alone nobody can tell what a token takes from what a step takes: then it is
        the tokens.
        """
        cost = replace(self.costs.compute() or _UNKNOWN_COMPUTE, loaded_byte_s=0.0)
        works = [step.work for step in self.costs.known().steps]
        sizes = [work.tokens + work.decodes for work in works]
        if not sizes or max(sizes) >= _TELLING_RATIO * min(sizes):
            return cost
        work = max(works, key=lambda work: work.tokens + work.decodes)
        return ComputeCost(0.0, cost.of(work) / max(sizes), 0.0)

    def _learn_loads(self, told: Told) -> None:
        for copy_s in told.copies_s:
            self.costs.note_copy(copy_s, self._last_s)
        arrivals: dict[str, list[Arrival]] = {}
        for block in told.arrived:
            arrival = Arrival(block.asked_s, block.arrived_s, block.nbytes)
            arrivals.setdefault(block.tier, []).append(arrival)
        self.learn_arrivals(arrivals)
        for number, lost in enumerate(told.given_up):
            self.costs.asked(lost.tier, number, lost.asked_s)
            self.costs.given_up(lost.tier, number, lost.given_up_s)
        self._silent |= {lost.tier for lost in told.given_up} - arrivals.keys()

    def _heard(self, tier: str | None) -> str | None:
        """Return a tier, unless costs are weighed and it has let a load down and not been heard of since."""
        return None if self.policy.weighs_costs and tier in self._silent else tier


def work_of(parts: Iterable[tuple[int, int]]) -> Work:
    """Return the work of a step in which each request computes ``(start, end)`` of its positions."""
    tokens, attended, decodes, context = 0, 0.0, 0, 0
    for start, end in parts:
        if end - start == 1 and start:
            decodes, context = decodes + 1, context + end
        else:
            prefill = Work.prefill(start, end)
            tokens, attended = tokens + prefill.tokens, attended + prefill.attended
    return Work(tokens, attended, decodes, context)
