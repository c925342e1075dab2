from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Event as Flag
from typing import Any

import pytest
import torch

from backends.faulty import Fault, Operation, fail, stall
from engine_adapter.engine.config import EngineConfig
from engine_adapter.engine.events import Event
from engine_adapter.engine.request import CacheUse, Request, Sampling
from engine_adapter.engine.runner import Chunk, ModelRunner
from kvstore.errors import (
    ConfigError,
    EngineClosedError,
    OverloadedError,
    PromptTooLongError,
    RequestError,
)
from policies.planning import Plan, PlanRequest
from policies.reload import AlwaysLoad
from tests.engine_adapter.rig import (
    BLOCK_TOKENS,
    CONTEXT_TOKENS,
    VOCAB_SIZE,
    CleanIds,
    Events,
    MakeRig,
    greedy,
    prompt_of,
    slow_tier,
)
from tests.eventually import eventually


@pytest.mark.parametrize(
    ("bad", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"seed": 2**63}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": -1}, "logprobs"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"stop": ("",)}, "stop"),
        ({"stop": ("x" * 257,)}, "stop"),
        ({"stop": ("x",) * 17}, "stop"),
    ],
)
def test_sampling_out_of_range_is_refused_by_name(bad: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        Sampling(**bad)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("bad", "param"),
    [
        ({"prompt_ids": []}, "prompt"),
        ({"ttl_s": 0.0}, "ttl_s"),
        ({"ttl_s": -1.0}, "ttl_s"),
        ({"ttl_s": float("nan")}, "ttl_s"),
        ({"expected_pause_s": float("inf")}, "expected_pause_s"),
        ({"session": ""}, "session"),
        ({"salt": "x" * 1025}, "salt"),
        ({"priority": 2**31}, "priority"),
        ({"priority": -(2**31) - 1}, "priority"),
    ],
)
def test_a_request_out_of_range_is_refused_by_name(bad: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        Request(**{"prompt_ids": [1], **bad})
    assert refused.value.param == param


@pytest.mark.parametrize("field", ["max_batched_tokens", "max_sequences", "load_deadline_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_an_impossible_configuration_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError) as refused:
        EngineConfig(**{field: value})  # type: ignore[arg-type]
    assert refused.value.setting == field


@pytest.mark.parametrize("token", [-1, VOCAB_SIZE])
def test_tokens_out_of_the_vocabulary_are_refused(make_rig: MakeRig, token: int) -> None:
    with pytest.raises(RequestError, match="token ids must be from 0 to 257"):
        make_rig().engine.submit(greedy([1, token]), Events())


def test_a_prompt_as_long_as_the_context_is_refused(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=CONTEXT_TOKENS // BLOCK_TOKENS)
    with pytest.raises(PromptTooLongError) as refused:
        rig.engine.submit(greedy(prompt_of(CONTEXT_TOKENS, 1)), Events())
    assert (refused.value.tokens, refused.value.limit) == (CONTEXT_TOKENS, CONTEXT_TOKENS - 1)


def test_a_prompt_longer_than_the_pool_is_refused(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=4)
    with pytest.raises(PromptTooLongError) as refused:
        rig.engine.submit(greedy(prompt_of(33, 1)), Events())
    assert (refused.value.limit, refused.value.holder) == (32, "device pool")


def test_too_many_requests_are_refused_and_later_ones_served(make_rig: MakeRig) -> None:
    rig = make_rig(max_sequences=1, max_waiting=2)
    accepted = [Events() for _ in range(3)]
    for events in accepted:
        rig.engine.submit(greedy(prompt_of(8, 1), 30), events)
    with pytest.raises(OverloadedError) as refused:
        rig.engine.submit(greedy(prompt_of(8, 1)), Events())
    assert (refused.value.num_waiting, refused.value.retry_after_s) == (2, 1.0)

    assert [events.finished().reason for events in accepted] == ["length"] * 3
    assert rig.engine.generate(greedy(prompt_of(8, 1))).reason == "length"


@pytest.mark.parametrize("num_tokens", [0, 1, 5])
def test_a_cancelled_request_gives_everything_back(make_rig: MakeRig, num_tokens: int) -> None:
    rig, events = make_rig(), Events()
    handle = rig.engine.submit(greedy(prompt_of(100, 1), 400), events)
    events.wait_for_tokens(num_tokens)

    rig.engine.cancel(handle)

    assert events.finished().reason == "cancelled"
    assert rig.engine.flush()
    assert rig.pool.num_available == rig.pool.num_blocks
    rig.engine.cancel(handle)


def test_a_cancelled_request_waiting_for_its_turn_is_never_run(make_rig: MakeRig) -> None:
    rig, first, second = make_rig(max_sequences=1), Events(), Events()
    rig.engine.submit(greedy(prompt_of(8, 1), 200), first)
    handle = rig.engine.submit(greedy(prompt_of(8, 2), 200), second)

    rig.engine.cancel(handle)

    assert second.finished().reason == "cancelled"
    assert second.finished().usage.queue_s is None
    assert first.finished().reason == "length"


def test_closing_a_stream_cancels_its_request(make_rig: MakeRig) -> None:
    rig = make_rig()
    stream = rig.engine.stream(greedy(prompt_of(20, 1), 400))
    next(stream)
    stream.close()  # type: ignore[attr-defined]

    eventually(lambda: rig.engine.statistics().requests == {"cancelled": 1})


def test_a_caller_that_raises_ends_its_own_request_alone(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    rig, prompt, events = make_rig(), prompt_of(20, 1), Events()

    def broken(_event: Event) -> None:
        raise ConnectionError("gone")

    rig.engine.submit(greedy(prompt, 30), events)
    rig.engine.submit(greedy(prompt, 30), broken)

    assert events.finished().reason == "length"
    assert events.token_ids == clean_ids(prompt, 30)
    eventually(lambda: rig.engine.statistics().requests == {"length": 1, "error": 1})


def test_a_failing_step_ends_its_requests_and_the_engine_goes_on(
    make_rig: MakeRig, clean_ids: CleanIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_runner: ModelRunner, _chunks: Sequence[Chunk]) -> torch.Tensor:
        raise RuntimeError("out of memory")

    rig, prompt = make_rig(), prompt_of(20, 1)
    with monkeypatch.context() as patch:
        patch.setattr(ModelRunner, "forward", broken)
        failed = rig.engine.generate(greedy(prompt))

    assert failed.reason == "error"
    assert failed.error == "the step failed: out of memory"
    assert rig.engine.generate(greedy(prompt)).token_ids == clean_ids(prompt, 12)
    assert rig.engine.health().ok


def test_logits_that_are_not_numbers_end_that_request_alone(
    make_rig: MakeRig, clean_ids: CleanIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, good, bad = make_rig(), prompt_of(20, 1), prompt_of(21, 2)
    forward = ModelRunner.forward

    def poisoned(runner: ModelRunner, chunks: Sequence[Chunk]) -> torch.Tensor:
        logits = forward(runner, chunks).clone()
        choosing = [chunk for chunk in chunks if chunk.num_logits]
        for row, chunk in enumerate(choosing):
            if chunk.end == len(bad):
                logits[row] = float("nan")
        return logits

    monkeypatch.setattr(ModelRunner, "forward", poisoned)
    answers = rig.generate_together([greedy(good, 1), greedy(bad, 1)])

    assert [answer.reason for answer in answers] == ["length", "error"]
    assert answers[0].token_ids == clean_ids(good, 1)
    assert "not numbers" in str(answers[1].error)


def test_a_failing_policy_costs_that_request_its_loads_alone(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    class Failing:
        def plan(self, request: PlanRequest) -> Plan:
            if request.prompt_tokens == 50:
                raise ZeroDivisionError("no plan")
            return AlwaysLoad().plan(request)

    rig, prompts = make_rig(policy=Failing()), [prompt_of(50, 1), prompt_of(40, 2)]
    rig.generate_together([greedy(prompt) for prompt in prompts])
    assert rig.engine.flush(10)
    rig.forget_device()

    answers = rig.generate_together([greedy(prompt) for prompt in prompts])

    assert [answer.token_ids for answer in answers] == [clean_ids(prompt, 12) for prompt in prompts]
    assert [answer.usage.tokens_by_source.get("host", 0) for answer in answers] == [0, 39]
    planned = answers[0].usage.planned
    assert planned is not None
    assert "ZeroDivisionError: no plan" in planned.reason


def test_a_broken_loop_is_never_silent(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, events = make_rig(), Events()
    rig.engine.submit(greedy(prompt_of(20, 1), 400), events)
    events.wait_for_tokens(1)

    def broken(_self: object) -> bool:
        raise RuntimeError("out of order")

    monkeypatch.setattr("engine_adapter.engine.scheduler.Scheduler.plan", broken)

    assert events.finished().reason == "error"
    assert "out of order" in str(events.finished().error)
    eventually(lambda: not rig.engine.health().ok)
    assert "out of order" in rig.engine.health().reason
    with pytest.raises(EngineClosedError):
        rig.engine.submit(greedy([1]), Events())


def test_closing_cancels_what_is_under_way_and_refuses_the_rest(make_rig: MakeRig) -> None:
    rig, running = make_rig(max_sequences=2), [Events() for _ in range(4)]
    for seed, events in enumerate(running):
        rig.engine.submit(greedy(prompt_of(20, seed), 400), events)
    running[0].wait_for_tokens(1)

    assert rig.engine.close(5)
    assert rig.engine.close(5)

    assert [events.finished().reason for events in running] == ["cancelled"] * 4
    assert rig.pool.num_available == rig.pool.num_blocks
    with pytest.raises(EngineClosedError):
        rig.engine.generate(greedy([1]))
    with pytest.raises(EngineClosedError):
        rig.engine.check()


def test_closing_returns_in_time_with_a_load_that_never_answers(make_rig: MakeRig) -> None:
    gate = Flag()
    rig = make_rig(tiers=slow_tier([Fault(Operation.GET, stall(gate.wait))]), load_deadline_s=60)
    prompt, events = prompt_of(50, 1), Events()
    rig.engine.generate(greedy(prompt))
    assert rig.engine.flush(10)
    rig.forget_device()
    rig.engine.submit(greedy(prompt), events)
    eventually(lambda: rig.engine.statistics().num_running == 1)

    started_s = time.monotonic()
    assert rig.engine.close(5)

    assert time.monotonic() - started_s < 1
    assert events.finished().reason == "cancelled"
    gate.set()


def test_closing_does_not_wait_for_a_step_that_hangs(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, forward = Flag(), ModelRunner.forward

    def hanging(runner: ModelRunner, chunks: Sequence[Chunk]) -> torch.Tensor:
        gate.wait(10)
        return forward(runner, chunks)

    monkeypatch.setattr(ModelRunner, "forward", hanging)
    rig, events = make_rig(), Events()
    rig.engine.submit(greedy(prompt_of(20, 1)), events)
    eventually(lambda: rig.engine.statistics().num_steps == 1)

    assert not rig.engine.close(0.05)
    gate.set()
    assert events.finished().reason == "cancelled"


def test_other_requests_go_on_while_one_waits_for_its_loads(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    gate = Flag()
    rig = make_rig(tiers=slow_tier([Fault(Operation.GET, stall(gate.wait))]), load_deadline_s=60)
    stored, other, events = prompt_of(50, 1), prompt_of(50, 2), Events()
    rig.engine.generate(greedy(stored))
    assert rig.engine.flush(10)
    rig.forget_device()

    rig.engine.submit(greedy(stored), events)
    assert rig.engine.generate(greedy(other)).token_ids == clean_ids(other, 12)
    assert events.seen == []
    gate.set()

    assert events.finished().usage.tokens_by_source == {"computed": 2, "disk": 48}
    assert events.token_ids == clean_ids(stored, 12)


def test_a_store_that_fails_every_write_leaves_answers_alone(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    rig, prompt = (
        make_rig(tiers=slow_tier([Fault(Operation.PUT, fail(OSError("unplugged")))])),
        prompt_of(50, 1),
    )

    assert rig.engine.generate(greedy(prompt)).token_ids == clean_ids(prompt, 12)
    rig.forget_device()
    again = rig.engine.generate(greedy(prompt))

    assert (again.token_ids, again.usage.cached_tokens) == (clean_ids(prompt, 12), 0)


def test_a_closed_store_leaves_answers_alone(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    rig, prompt = make_rig(), prompt_of(50, 1)
    rig.engine.generate(greedy(prompt))
    rig.forget_device()
    rig.store.close(5)

    assert rig.engine.generate(greedy(prompt)).token_ids == clean_ids(prompt, 12)
    assert rig.engine.generate(greedy(prompt, cache=CacheUse.READ)).token_ids == clean_ids(prompt, 12)
