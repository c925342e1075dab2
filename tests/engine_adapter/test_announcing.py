"""What an engine tells of a request that has ended."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from engine_adapter.engine.request import CacheUse, Mode, Request, Sampling
from kvstore.namespace import salt_digest
from kvstore.served import ServedPrompt
from tests.engine_adapter.rig import BLOCK_TOKENS, Events, MakeRig, Rig, greedy, prompt_of
from tests.eventually import eventually

Told = list[ServedPrompt]


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def make(make_rig: MakeRig, told: Told) -> Callable[..., Rig]:
    return lambda **options: make_rig(on_served=[told.append], **options)


def test_a_request_is_told_by_its_blocks_and_hints(make: Callable[..., Rig], told: Told) -> None:
    rig = make()
    prompt = prompt_of(3 * BLOCK_TOKENS + 5, seed=1)
    hints = {"session": "s", "end_session": True, "expected_pause_s": 2.5, "ttl_s": 60.0}
    before_ms = time.time_ns() // 1_000_000
    answer = rig.engine.generate(greedy(prompt, 12, salt="mine", **hints))
    (served,) = told
    tokens = [*prompt, *answer.token_ids]
    assert served.keys == tuple(rig.keys(prompt, "mine"))
    # The last token that was chosen was not computed on.
    assert served.keys + served.answer_keys == tuple(rig.keys(tokens[:-1], "mine"))
    assert len(served.answer_keys) == 2
    assert (served.input_tokens, served.output_tokens) == (len(prompt), 12)
    assert (served.block_tokens, served.stop) == (BLOCK_TOKENS, "length")
    assert (served.tenant, served.session, served.end_session) == (salt_digest("mine"), "s", True)
    assert (served.expected_pause_s, served.ttl_s) == (2.5, 60.0)
    assert served.namespace == rig.model.namespace.with_salt("mine").digest
    assert before_ms - 1 <= served.at_ms <= time.time_ns() // 1_000_000
    assert (dict(served.tokens_by_tier), served.reads, served.writes) == ({}, True, True)


def test_tokens_are_told_by_the_tier_that_gave_them(make: Callable[..., Rig], told: Told) -> None:
    rig = make()
    request = greedy(prompt_of(3 * BLOCK_TOKENS + 5, seed=1))
    rig.engine.generate(request)
    rig.engine.generate(request)
    assert rig.engine.flush()
    rig.forget_device()
    rig.engine.generate(request)
    tiers = [dict(served.tokens_by_tier) for served in told]
    assert tiers == [{}, {"device": 3 * BLOCK_TOKENS}, {"host": 3 * BLOCK_TOKENS}]


def test_what_makes_no_use_of_the_cache_is_not_told(make: Callable[..., Rig], told: Told) -> None:
    rig = make()
    prompt = prompt_of(20, seed=2)
    rig.engine.generate(greedy(prompt, cache=CacheUse.OFF))
    rig.engine.generate(greedy(prompt, mode=Mode.OFF))
    assert told == []
    rig.engine.generate(greedy(prompt, cache=CacheUse.WRITE))
    rig.engine.generate(greedy(prompt, cache=CacheUse.READ))
    assert [(served.reads, served.writes) for served in told] == [(False, True), (True, False)]


def test_a_cancelled_request_is_told_as_far_as_it_came(make: Callable[..., Rig], told: Told) -> None:
    rig = make(num_blocks=256, max_batched_tokens=BLOCK_TOKENS, max_sequences=4)
    prompt = prompt_of(200 * BLOCK_TOKENS, seed=3)
    events = Events()
    handle = rig.engine.submit(greedy(prompt), events)
    eventually(lambda: rig.engine.statistics().num_steps >= 2)
    rig.engine.cancel(handle)
    events.finished()
    (served,) = told
    num_blocks = len(served.keys)
    assert 1 <= num_blocks < 200
    assert (served.stop, served.keys) == ("cancelled", tuple(rig.keys(prompt)[:num_blocks]))
    assert (served.input_tokens, served.output_tokens, served.answer_keys) == (len(prompt), 0, ())


def test_several_answers_to_a_prompt_are_one_request(make: Callable[..., Rig], told: Told) -> None:
    rig = make()
    sampling = Sampling(n=3, max_tokens=4, seed=1, ignore_eos=True)
    rig.engine.generate_all(Request(prompt_of(20, seed=4), sampling))
    assert len(told) == 1


def test_a_subscriber_that_raises_costs_no_request_anything(make_rig: MakeRig, told: Told) -> None:
    def broken(served: ServedPrompt) -> None:
        raise ValueError("broken")

    rig = make_rig(on_served=[broken, told.append])
    for seed in range(2):
        assert rig.engine.generate(greedy(prompt_of(20, seed=seed))).reason == "length"
    assert len(told) == 2
