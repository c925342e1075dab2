"""Whatever a policy decides, however often it changes its mind, and however loads end: answers stay clean."""

from __future__ import annotations

from random import Random

import pytest

from backends.faulty import Fault, Faulty, Operation
from backends.host import HostBackend
from backends.throttle import Throttled
from kvstore.arena import Arena
from kvstore.tier import TierSpec
from policies.planning import READY, Choice, Plan, PlanRequest
from policies.reload import AlwaysCompute
from tests.engine_adapter.rig import SLOT_BYTES, CleanIds, MakeRig, greedy, host_tier, moody, prompt_of, tier
from tests.eventually import eventually


class Capricious:
    """Decides by chance at every review, block by block or about all of them at once."""

    weighs_costs = False

    def __init__(self, random: Random) -> None:
        self._random = random
        self.num_plans = 0
        self.num_changes = 0

    def plan(self, request: PlanRequest) -> Plan:
        self.num_plans += 1
        plan = AlwaysCompute().plan(request)
        bias = self._random.choice([0.0, 0.2, 0.5, 0.9, 1.0])
        choices = tuple(
            Choice.LOAD if tier is not None and self._random.random() < bias else Choice.COMPUTE
            for tier in request.tiers
        )
        held = [index for index, tier in enumerate(request.tiers) if tier not in {None, READY}]
        probes = tuple(self._random.sample(held, min(2, len(held)))) if self._random.random() < 0.3 else ()
        if request.previous is not None:
            self.num_changes += choices != request.previous.choices
        return Plan(choices, plan.prediction, "by chance", probes)


@pytest.mark.parametrize("chunk", [5, 8, 20, 48])
@pytest.mark.parametrize("seed", range(2))
def test_answers_stay_clean_whatever_is_loaded_and_computed(
    make_rig: MakeRig, clean_ids: CleanIds, chunk: int, seed: int
) -> None:
    random = Random(100 * chunk + seed)

    def tiers(arena: Arena) -> list[TierSpec]:
        script = [Fault(Operation.GET, moody(random))]
        slow = Faulty(Throttled(HostBackend(Arena(2**24)), 2e6, 0.002), script)
        slower = Faulty(Throttled(HostBackend(Arena(2**24)), 5e5, 0.01), script)
        return [
            host_tier(arena, 6 * SLOT_BYTES),
            tier(slow, "disk", 30 * SLOT_BYTES, cooldown_s=0.02),
            tier(slower, "redis", cooldown_s=0.02),
        ]

    policy = Capricious(Random(seed))
    rig = make_rig(
        num_blocks=60,
        tiers=tiers,
        policy=policy,
        max_batched_tokens=chunk,
        max_sequences=4,
        load_deadline_s=0.03,
    )
    stems = [prompt_of(200, 1), prompt_of(160, 2)]
    num_loaded = 0
    for turn in range(5):
        requests = []
        for number in range(random.choice([1, 4])):
            stem = random.choice(stems)[: random.randrange(20, 200)]
            tail = prompt_of(random.choice([0, 0, 11]), 10 * turn + number)
            requests.append(greedy(stem + tail, random.randrange(1, 8)))
        answers = rig.generate_together(requests)
        for request, answer in zip(requests, answers, strict=True):
            assert answer.token_ids == clean_ids(request.prompt_ids, request.sampling.max_tokens or 0)
            assert sum(answer.usage.tokens_by_source.values()) == len(request.prompt_ids)
            num_loaded += answer.usage.cached_tokens
        eventually(lambda: rig.store.num_holds == 0)  # abandoned transfers come to their end
        rig.check_at_rest()
        rig.forget_device()
    assert num_loaded > 0
    assert policy.num_changes > 0
