"""Faults that others shipped; the numbers are those of the collection of cases."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from threading import Event as Flag

import pytest

from backends.disk import DiskBackend
from backends.faulty import Action, Fault, Operation, fail, flip_byte, miss, stall
from backends.host import HostBackend
from backends.throttle import Throttled
from engine_adapter.engine.request import CacheUse
from kvstore.arena import Arena
from kvstore.tier import TierSpec
from policies.planning import Plan, PlanRequest
from policies.reload import AlwaysLoad
from tests.engine_adapter.pool_kinds import in_every_pool
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


def stored(rig: Rig, prompt: Sequence[int]) -> None:
    """Leave the blocks of ``prompt`` in the store alone."""
    rig.engine.generate(greedy(prompt, 1))
    assert rig.engine.flush(10)
    rig.forget_device()


class Meddling:
    """Loads everything, after doing something between lookup and load."""

    def __init__(self) -> None:
        self.meddle: Callable[[], object] = lambda: None

    def plan(self, request: PlanRequest) -> Plan:
        self.meddle()
        return AlwaysLoad().plan(request)


@in_every_pool
def test_case_02_the_same_prompt_four_times_with_the_device_cache_off(
    make_rig: MakeRig, clean_ids: CleanIds
) -> None:
    rig, prompt = make_rig(num_blocks=200), prompt_of(1502, 1)
    answers = []
    for _ in range(4):
        answers.append(rig.engine.generate(greedy(prompt)))
        rig.forget_device()

    assert {answer.token_ids for answer in answers} == {clean_ids(prompt, 12)}
    assert [answer.usage.tokens_by_source.get("host", 0) for answer in answers] == [0, 1496, 1496, 1496]


@in_every_pool
def test_case_03_long_sessions_on_disk_revisited_between_short_requests(
    make_rig: MakeRig, clean_ids: CleanIds, tmp_path: Path
) -> None:
    def small_host_over_disk(arena: Arena) -> list[TierSpec]:
        return [host_tier(arena, 20 * SLOT_BYTES), tier(DiskBackend(tmp_path / "blocks"), "disk")]

    rig = make_rig(num_blocks=64, tiers=small_host_over_disk, max_batched_tokens=64)
    preamble = prompt_of(40, 0)
    sessions = [preamble + prompt_of(200, seed) for seed in range(1, 5)]
    for session in sessions:
        assert rig.engine.generate(greedy(session)).token_ids == clean_ids(session, 12)
        assert rig.engine.flush(10)

    loaded = 0
    for turn in range(2):
        for number, session in enumerate(sessions):
            short = [greedy(prompt_of(20, 100 + 10 * turn + number + i), 4) for i in range(3)]
            answer, *others = rig.generate_together([greedy(session), *short])
            assert answer.token_ids == clean_ids(session, 12)
            assert [other.token_ids for other in others] == [clean_ids(r.prompt_ids, 4) for r in short]
            loaded += answer.usage.tokens_by_source.get("disk", 0)
    assert loaded > 0


@in_every_pool
@pytest.mark.parametrize("num_blocks", [24, 128])
def test_case_04_the_same_prompt_at_high_concurrency_with_offload(
    make_rig: MakeRig, clean_ids: CleanIds, num_blocks: int
) -> None:
    rig = make_rig(num_blocks=num_blocks, host_blocks=16, max_batched_tokens=40, max_sequences=12)
    prompt, other = prompt_of(100, 1), prompt_of(90, 2)
    for _ in range(3):
        requests = [greedy(prompt, 6)] * 10 + [greedy(other, 6)] * 6
        Random(num_blocks).shuffle(requests)
        answers = rig.generate_together(requests)
        assert [a.token_ids for a in answers] == [clean_ids(r.prompt_ids, 6) for r in requests]
        rig.check_at_rest()
        rig.forget_device()


@pytest.mark.parametrize("nth", [None, 1, 4])
@pytest.mark.parametrize("refusal", [miss, fail(OSError("gone")), flip_byte(100)])
def test_case_07_a_promised_load_is_refused_at_once_or_half_way(
    make_rig: MakeRig, clean_ids: CleanIds, nth: int | None, refusal: Action
) -> None:
    rig, prompt = make_rig(tiers=slow_tier([Fault(Operation.GET, refusal, nth)])), prompt_of(75, 1)
    stored(rig, prompt)

    answer = rig.engine.generate(greedy(prompt))

    assert answer.token_ids == clean_ids(prompt, 12)
    loaded = answer.usage.tokens_by_source.get("disk", 0)
    assert loaded == (0 if nth is None else 72 - 8)
    assert answer.usage.tokens_by_source["computed"] == 75 - loaded
    assert rig.engine.statistics().num_taken_over == (72 - loaded) // 8


@in_every_pool
@pytest.mark.parametrize("chunk", [3, 5, 8, 20, 512])
def test_case_09_chunked_prefill_stores_all_whole_blocks_for_a_new_process(
    make_rig: MakeRig, clean_ids: CleanIds, tmp_path: Path, chunk: int
) -> None:
    def tiers(arena: Arena) -> list[TierSpec]:
        return [host_tier(arena, 2**20), tier(DiskBackend(tmp_path / "blocks"), "disk")]

    prompts = [prompt_of(length, length) for length in (60, 64)]
    first = make_rig(tiers=tiers, max_batched_tokens=chunk, max_sequences=2)
    first.generate_together([greedy(prompt, 1) for prompt in prompts])
    assert first.engine.flush(10)
    assert first.engine.close(5)
    first.store.close(5)

    second = make_rig(tiers=tiers)
    answers = [second.engine.generate(greedy(prompt)) for prompt in prompts]

    assert [answer.usage.tokens_by_source.get("disk") for answer in answers] == [56, 63]
    assert [answer.token_ids for answer in answers] == [clean_ids(prompt, 12) for prompt in prompts]


def test_case_10_blocks_lost_between_lookup_and_load(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    backend, policy, prompt = HostBackend(Arena(2**24)), Meddling(), prompt_of(75, 1)
    rig = make_rig(tiers=lambda _: [tier(backend, "disk")], policy=policy)
    stored(rig, prompt)
    lost = rig.keys(prompt)[2:5]

    def lose() -> None:
        for key in lost:
            backend.delete(key)

    policy.meddle = lose

    answer = rig.engine.generate(greedy(prompt))

    assert answer.token_ids == clean_ids(prompt, 12)
    assert answer.usage.tokens_by_source == {"computed": 3 + 24, "disk": 48}


def test_case_10_blocks_lost_while_their_load_is_in_flight(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    gate, prompt, events = Flag(), prompt_of(75, 1), Events()
    rig = make_rig(tiers=slow_tier([Fault(Operation.GET, stall(gate.wait))]), load_deadline_s=30)
    stored(rig, prompt)
    rig.engine.submit(greedy(prompt), events)
    eventually(lambda: rig.engine.statistics().num_running == 1)

    evicted = rig.store.evict(rig.keys(prompt))
    gate.set()

    assert events.finished().reason == "length"
    assert events.token_ids == clean_ids(prompt, 12)
    assert evicted == 0


@in_every_pool
def test_case_10_an_evicting_store_is_never_relied_on(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    rig = make_rig(num_blocks=40, host_blocks=24, max_sequences=4)
    prompts = [prompt_of(24, 0) + prompt_of(100, seed) for seed in range(1, 9)]
    requests = [greedy(prompt, 4) for prompt in Random(1).choices(prompts, k=40)]

    answers = rig.generate_together(requests)

    assert [a.token_ids for a in answers] == [clean_ids(r.prompt_ids, 4) for r in requests]


def test_case_12_a_lease_that_has_run_out_loads_nothing(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    policy, prompt = Meddling(), prompt_of(75, 1)
    rig = make_rig(policy=policy, lease_s=0.01)
    stored(rig, prompt)
    policy.meddle = lambda: time.sleep(0.02)

    answer = rig.engine.generate(greedy(prompt))

    assert answer.token_ids == clean_ids(prompt, 12)
    assert answer.usage.tokens_by_source == {"computed": 75}


@in_every_pool
def test_case_13_cancelled_with_transfers_in_flight_and_admitted_again(
    make_rig: MakeRig, clean_ids: CleanIds
) -> None:
    gate, prompt, cancelled, again = Flag(), prompt_of(75, 1), Events(), Events()
    rig = make_rig(tiers=slow_tier([Fault(Operation.GET, stall(gate.wait))]), load_deadline_s=30)
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


@in_every_pool
def test_case_13_preempted_with_transfers_in_flight_and_admitted_again(
    make_rig: MakeRig, clean_ids: CleanIds
) -> None:
    gate, growing, loading = Flag(), prompt_of(20, 1), prompt_of(75, 2)
    rig = make_rig(
        num_blocks=14, tiers=slow_tier([Fault(Operation.GET, stall(gate.wait))]), load_deadline_s=30
    )
    stored(rig, loading)
    first, second = Events(), Events()
    rig.engine.submit(greedy(growing, 60, cache=CacheUse.OFF), first)
    first.wait_for_tokens(1)
    rig.engine.submit(greedy(loading), second)

    assert first.finished().reason == "length"
    assert rig.engine.statistics().num_preempted > 0
    gate.set()

    assert second.finished().reason == "length"
    assert first.token_ids == clean_ids(growing, 60)
    assert second.token_ids == clean_ids(loading, 12)


def test_case_14_a_load_that_never_answers_is_taken_over_at_its_deadline(
    make_rig: MakeRig, clean_ids: CleanIds
) -> None:
    gate, prompt = Flag(), prompt_of(75, 1)
    rig = make_rig(tiers=slow_tier([Fault(Operation.GET, stall(gate.wait))]), load_deadline_s=0.05)
    stored(rig, prompt)

    answer = rig.engine.generate(greedy(prompt))

    assert answer.token_ids == clean_ids(prompt, 12)
    assert answer.usage.tokens_by_source == {"computed": 75}
    assert answer.usage.ttft_s is not None
    assert 0.05 <= answer.usage.ttft_s < 1
    gate.set()


def test_a_slow_line_is_waited_for_while_it_keeps_answering(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    def slow_line(_arena: Arena) -> list[TierSpec]:
        return [tier(Throttled(HostBackend(Arena(2**24)), 460_800), "disk", num_readers=1)]

    rig, prompt = make_rig(tiers=slow_line, load_deadline_s=0.2), prompt_of(200, 1)
    stored(rig, prompt)

    answer = rig.engine.generate(greedy(prompt))

    assert answer.token_ids == clean_ids(prompt, 12)
    assert answer.usage.tokens_by_source == {"computed": 1, "disk": 199}
    assert answer.usage.load_s >= 25 * 0.01


@in_every_pool
def test_case_16_a_pool_full_of_cached_blocks_makes_room_on_demand(
    make_rig: MakeRig, clean_ids: CleanIds
) -> None:
    rig = make_rig(num_blocks=20, host_blocks=40)
    first, others = prompt_of(120, 1), [prompt_of(150, seed) for seed in (2, 3)]
    for prompt in (first, *others):
        rig.engine.generate(greedy(prompt, 1))

    answer = rig.engine.generate(greedy(first))

    assert answer.token_ids == clean_ids(first, 12)


def test_case_19_another_salt_hits_in_no_tier(make_rig: MakeRig) -> None:
    rig, prompt = make_rig(), prompt_of(50, 1)
    rig.engine.generate(greedy(prompt, salt="one"))
    rig.forget_device()

    assert rig.engine.generate(greedy(prompt, salt="two")).usage.cached_tokens == 0
    assert rig.engine.generate(greedy(prompt, salt="one")).usage.tokens_by_source == {
        "computed": 2,
        "host": 48,
    }
