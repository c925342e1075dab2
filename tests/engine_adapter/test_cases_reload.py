"""Faults that others shipped, where costs decide what is loaded; numbers as in the collection of cases."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import Random
from threading import Event as Flag

import pytest

from backends.faulty import Action, Call, Fault, Faulty, Operation, fail, flip_byte, miss, stall
from backends.host import HostBackend
from backends.throttle import Throttled
from engine_adapter.engine.request import CacheUse
from kvstore.arena import Arena
from kvstore.tier import TierSpec
from policies.planning import Plan, PlanRequest
from policies.reload import Measured
from tests.engine_adapter.believing import EVEN, QUICK, believing
from tests.engine_adapter.rig import (
    SLOT_BYTES,
    CleanIds,
    Events,
    MakeRig,
    Rig,
    greedy,
    host_tier,
    prompt_of,
    slow_tier,
    tier,
)
from tests.eventually import eventually

LOADING = believing(1e-3, {"disk": QUICK})
"""Costs by which nearly everything is loaded."""
BOTH = believing(1e-3, {"disk": EVEN})
"""Costs by which half is loaded while half is computed."""


def stored(rig: Rig, prompt: Sequence[int]) -> None:
    """Leave the blocks of ``prompt`` in the store alone."""
    rig.engine.generate(greedy(prompt, 1))
    assert rig.engine.flush(10)
    rig.forget_device()


class Delayed(Measured):
    """Decides by cost, after something has happened between lookup and load."""

    def __init__(self) -> None:
        self.delay: Callable[[], object] = lambda: None

    def plan(self, request: PlanRequest) -> Plan:
        self.delay()
        return super().plan(request)


@pytest.mark.parametrize("make_costs", [LOADING, BOTH], ids=["loading", "both"])
@pytest.mark.parametrize("num_blocks", [24, 128])
def test_case_4_the_same_prompt_at_high_concurrency_while_half_of_it_is_loaded(
    make_rig: MakeRig, clean_ids: CleanIds, num_blocks: int, make_costs: object
) -> None:
    def tiers(arena: Arena) -> list[TierSpec]:
        disk = Throttled(HostBackend(Arena(2**24)), 2e6, 0.001)
        return [host_tier(arena, 4 * SLOT_BYTES), tier(disk, "disk")]

    rig = make_rig(
        num_blocks, tiers, policy=Measured(), make_costs=make_costs, max_batched_tokens=40, max_sequences=12
    )
    prompt, other = prompt_of(100, 1), prompt_of(90, 2)
    for _ in range(3):
        requests = [greedy(prompt, 6)] * 10 + [greedy(other, 6)] * 6
        Random(num_blocks).shuffle(requests)
        answers = rig.generate_together(requests)
        assert [a.token_ids for a in answers] == [clean_ids(r.prompt_ids, 6) for r in requests]
        rig.check_at_rest()
        rig.forget_device()
    assert rig.engine.statistics().tokens_by_source.get("disk", 0) > 0


@pytest.mark.parametrize("make_costs", [LOADING, BOTH], ids=["loading", "both"])
@pytest.mark.parametrize("nth", [None, 1, 4])
@pytest.mark.parametrize("refusal", [miss, fail(OSError("gone")), flip_byte(100)])
def test_case_7_a_promised_load_is_refused_at_once_or_half_way(
    make_rig: MakeRig, clean_ids: CleanIds, nth: int | None, refusal: Action, make_costs: object
) -> None:
    rig = make_rig(
        tiers=slow_tier([Fault(Operation.GET, refusal, nth)]), policy=Measured(), make_costs=make_costs
    )
    prompt = prompt_of(75, 1)
    stored(rig, prompt)

    answer = rig.engine.generate(greedy(prompt))

    assert answer.token_ids == clean_ids(prompt, 12)
    assert sum(answer.usage.tokens_by_source.values()) == 75
    assert answer.usage.planned is not None
    assert answer.usage.planned.tokens_by_tier == {"disk": 72}
    if nth is None:
        assert answer.usage.tokens_by_source.get("disk", 0) == 0


def test_case_12_a_lease_that_has_run_out_loads_nothing(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    policy, prompt = Delayed(), prompt_of(75, 1)
    rig = make_rig(tiers=slow_tier([]), policy=policy, make_costs=LOADING, lease_s=0.01)
    stored(rig, prompt)
    policy.delay = lambda: time.sleep(0.02)

    answer = rig.engine.generate(greedy(prompt))

    assert answer.token_ids == clean_ids(prompt, 12)
    assert answer.usage.tokens_by_source == {"computed": 75}


@pytest.mark.parametrize("make_costs", [LOADING, BOTH], ids=["loading", "both"])
def test_case_13_cancelled_with_transfers_in_flight_and_admitted_again(
    make_rig: MakeRig, clean_ids: CleanIds, make_costs: object
) -> None:
    gate, prompt, cancelled, again = Flag(), prompt_of(400, 1), Events(), Events()
    rig = make_rig(
        tiers=slow_tier([Fault(Operation.GET, stall(gate.wait))]),
        policy=Measured(),
        make_costs=make_costs,
        max_batched_tokens=16,
        max_sequences=4,
    )
    stored(rig, prompt)
    handle = rig.engine.submit(greedy(prompt), cancelled)
    eventually(lambda: rig.engine.statistics().num_running == 1)

    rig.engine.cancel(handle)
    assert cancelled.finished().reason == "cancelled"
    assert rig.pool.num_available == rig.pool.num_blocks
    rig.engine.submit(greedy(prompt), again)
    gate.set()

    assert again.finished().reason == "length"
    assert again.token_ids == clean_ids(prompt, 12)


def test_case_13_preempted_with_transfers_in_flight_and_admitted_again(
    make_rig: MakeRig, clean_ids: CleanIds
) -> None:
    gate, growing, loading = Flag(), prompt_of(20, 1), prompt_of(75, 2)
    rig = make_rig(
        num_blocks=14,
        tiers=slow_tier([Fault(Operation.GET, stall(gate.wait))]),
        policy=Measured(),
        make_costs=BOTH,
    )
    stored(rig, loading)
    first, second = Events(), Events()
    rig.engine.submit(greedy(growing, 60, cache=CacheUse.OFF), first)
    first.wait_for_tokens(1)
    rig.engine.submit(greedy(loading), second)

    assert first.finished().reason == "length"
    gate.set()

    assert second.finished().reason == "length"
    assert first.token_ids == clean_ids(growing, 60)
    assert second.token_ids == clean_ids(loading, 12)


@pytest.mark.parametrize("make_costs", [LOADING, BOTH], ids=["loading", "both"])
def test_case_14_a_load_that_never_answers_is_overtaken_by_computing(
    make_rig: MakeRig, clean_ids: CleanIds, make_costs: object
) -> None:
    gate, prompt = Flag(), prompt_of(75, 1)
    rig = make_rig(
        tiers=slow_tier([Fault(Operation.GET, stall(gate.wait))]), policy=Measured(), make_costs=make_costs
    )
    stored(rig, prompt)

    answer = rig.engine.generate(greedy(prompt))

    assert answer.token_ids == clean_ids(prompt, 12)
    assert answer.usage.tokens_by_source == {"computed": 75}
    gate.set()
    eventually(lambda: rig.store.num_holds == 0)


def test_case_14_a_block_that_is_always_bad_is_loaded_once_a_request(
    make_rig: MakeRig, clean_ids: CleanIds
) -> None:
    prompt, bad, asked = prompt_of(75, 1), list[bytes](), list[bytes]()

    def always_bad(call: Call) -> int | None:
        asked.append(call.key)
        return flip_byte(9)(call) if call.key in bad else call.proceed()

    backend = Faulty(HostBackend(Arena(2**24)), [Fault(Operation.GET, always_bad)])
    rig = make_rig(tiers=lambda _: [tier(backend, "disk")], policy=Measured(), make_costs=LOADING)
    stored(rig, prompt)
    bad.append(rig.keys(prompt)[5])

    for num_loads in (1, 2, 3):
        assert rig.engine.generate(greedy(prompt)).token_ids == clean_ids(prompt, 12)
        assert asked.count(bad[0]) == num_loads
        assert rig.engine.flush(10)
        rig.forget_device()
