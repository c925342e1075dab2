"""What would happen to a prompt, and why, without running it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine_adapter.engine.events import Chosen
from engine_adapter.engine.misses import Miss, Relatives, first_miss, traced
from engine_adapter.engine.planner import Planner
from engine_adapter.engine.plans import chosen_by
from engine_adapter.engine.prefix import PrefixCache
from engine_adapter.engine.request import Mode, Request
from kvstore.absences import Cause
from kvstore.clock import Clock
from kvstore.keys import chain_keys
from kvstore.tier import DEVICE
from policies.cost_model import LoadCost
from policies.planning import READY, Choice, Plan, PlanRequest

OnEngineThread = Callable[[Callable[[], None]], None]
"""Runs something between two turns of the engine, and blocks until it is done."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What would be done with a prompt now, were it alone, and why.

    ``tiers[i]`` is where block i of the prompt is, ``None``: nowhere; ``plan`` chooses for each of them.
    ``chosen`` is for how many of those that can be loaded it is planned. Where ``mode`` lets nothing be
    loaded, the plan is what mode ``serve`` would do. ``loads`` is what the tiers' loads cost.
    ``miss`` is the first block in no tier.
    """

    namespace: str
    mode: Mode
    policy: str
    prompt_tokens: int
    block_tokens: int
    tiers: Sequence[str | None]
    plan: Plan
    chosen: Chosen
    loads: Mapping[str, LoadCost]
    miss: Miss | None

    @property
    def tokens_by_tier(self) -> dict[str, int]:
        """The tokens that each tier has, of whole blocks and from the fastest tier that has them."""
        found = [tier for tier in self.tiers if tier is not None]
        return {tier: found.count(tier) * self.block_tokens for tier in dict.fromkeys(found)}

    @property
    def reason(self) -> str:
        """A sentence for people."""
        if self.mode is Mode.OFF:
            return "the mode is off: everything is computed"
        if self.prompt_tokens < self.block_tokens:
            return f"the prompt is shorter than a block of {self.block_tokens} tokens: it is computed"
        if self.mode is Mode.OBSERVE:
            return f"the mode is observe: nothing is loaded; mode serve: {self.plan.reason}"
        return self.plan.reason

    def is_shared(self, tier: str | None) -> bool:
        """Say whether blocks of ``tier`` are used where they are."""
        return tier == DEVICE and self.mode is not Mode.OFF

    def is_loaded(self, index: int) -> bool:
        """Say whether block ``index`` would come from a tier below the device."""
        is_below = self.tiers[index] not in {None, DEVICE}
        return is_below and self.plan.choices[index] is Choice.LOAD and self.mode in {Mode.SERVE, Mode.VERIFY}


class Explainer:
    """Explains prompts on its callers' threads; the engine's gives only what things cost."""

    def __init__(
        self,
        prefix: PrefixCache,
        planner: Planner,
        relatives: Relatives,
        clock: Clock,
        answer_s: float,
        on_engine_thread: OnEngineThread,
    ) -> None:
        """``answer_s`` is how long shared media may take to answer."""
        self._prefix = prefix
        self._store = prefix.store
        self._planner = planner
        self._relatives = relatives
        self._clock = clock
        self._answer_s = answer_s
        self._on_engine_thread = on_engine_thread

    def explain(self, request: Request, mode: Mode, num_waiting: int) -> Explanation:
        """Return what would be done; blocks on media, for some seconds at most.

        Nothing is leased, touched or extended. Raises ``EngineClosedError`` or ``StoreClosedError``.
        """
        namespace = self._prefix.namespace_of(request)
        keys = chain_keys(namespace.digest, request.prompt_ids, namespace.block_tokens)
        tiers = self.find(keys)
        costs = self._costs(_for_plan(tiers, mode), request, num_waiting)
        plan = self._planner.decide(costs)
        miss = first_miss(self._store, keys, tiers, namespace.block_tokens)
        if miss is not None and miss.cause is Cause.NEVER_STORED:
            self._relatives.refresh()
            others = self._relatives.of(namespace)
            miss = traced(miss, namespace, others, request.prompt_ids, self.find)
        return Explanation(
            namespace=namespace.label,
            mode=mode,
            policy=self._planner.policy.name,
            prompt_tokens=len(request.prompt_ids),
            block_tokens=namespace.block_tokens,
            tiers=tiers,
            plan=plan,
            chosen=chosen_by(plan, costs.tiers),
            loads={tier: cost for tier, cost in costs.loads.items() if tier in tiers},
            miss=miss,
        )

    def find(self, keys: Sequence[bytes]) -> tuple[str | None, ...]:
        """Return each block's fastest tier, after shared media were asked."""
        ends_s = self._clock.monotonic_s() + self._answer_s
        inquiry = self._store.inquire(keys, ends_s, block_bytes=self._prefix.pool.shape.block_bytes)
        if inquiry is not None:
            inquiry.wait(self._answer_s)
            inquiry.abandon()
        return self._store.peek(keys)

    def _costs(self, tiers: Sequence[str | None], request: Request, num_waiting: int) -> PlanRequest:
        found: list[PlanRequest] = []
        num_tokens = len(request.prompt_ids)
        self._on_engine_thread(lambda: found.append(self._planner.imagine(tiers, num_tokens, num_waiting)))
        return found[0]


def _for_plan(tiers: Sequence[str | None], mode: Mode) -> list[str | None]:
    """Return where a plan finds each block: without a cache nowhere, on the device it is ready."""
    if mode is Mode.OFF:
        return [None] * len(tiers)
    return [READY if tier == DEVICE else tier for tier in tiers]
