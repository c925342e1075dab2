"""The audit in idle time keeps to itself: no request waits for it, nothing shows it, tokens are forgotten."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.faulty import Fault, Operation
from engine_adapter.engine.audit import Audit
from engine_adapter.engine.models import load_model
from engine_adapter.engine.request import CacheUse
from engine_adapter.engine.runner import Chunk
from kvstore.errors import ConfigError
from kvstore.served import ServedPrompt
from tests.engine_adapter.believing import believing
from tests.engine_adapter.rechecks import (
    NUM_BLOCKS,
    PROMPT,
    QUICK,
    compared,
    facts,
    host_and_disk,
    replaced,
    served,
    watched_steps,
)
from tests.engine_adapter.rig import (
    BLOCK_TOKENS,
    Events,
    MakeRig,
    greedy,
    prompt_of,
)
from tests.eventually import eventually


def test_a_request_that_comes_waits_for_no_more_than_the_step_under_way(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(512, recheck_share=1.0)
    prompt, late = prompt_of(400, 1), prompt_of(20, 9)
    rig.engine.rechecker.set_share(0.0)
    rig.engine.rechecker.set_share(1.0)
    served(rig, prompt)
    steps = watched_steps(rig, monkeypatch)
    eventually(lambda: len(steps) > 0)

    events, num_before = Events(), []

    def submit() -> None:
        num_before.append(len(steps))
        rig.engine.submit(greedy(late, 4), events)

    rig.on_engine_thread(submit)
    events.finished()

    assert steps[num_before[0]] == late, "it is computed in the very next step"
    assert [len(step) for step in steps[num_before[0] + 1 :][:3]] == [1, 1, 1], "and goes on to its end"
    assert compared(rig, 2 * (len(prompt) // BLOCK_TOKENS)).num_wrong == 0, "then the audit goes on"


def test_nothing_is_done_while_there_are_requests(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, prompt = make_rig(512, recheck_share=1.0, clock=QUICK), prompt_of(400, 1)
    steps = watched_steps(rig, monkeypatch)
    rig.engine.generate(greedy(prompt, 200))
    num_at_end = len(steps)
    compared(rig, 1)
    assert sum(map(len, steps[:num_at_end])) == len(prompt) + 199


def test_a_prompt_that_goes_on_is_begun_anew_in_its_place(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, prompt = make_rig(512, make_costs=believing(1e-3), recheck_share=1.0), prompt_of(400, 1)
    longer, events = prompt + prompt_of(32, 2), Events()
    served(rig, prompt)
    steps = watched_steps(rig, monkeypatch, lambda: rig.engine.submit(greedy(longer, 1), events))
    compared(rig, 2 * 54)
    events.finished()
    begun = [number for number, step in enumerate(steps) if step == prompt[:16]]
    assert len(begun) == 2
    assert prompt[48:64] not in steps[: begun[1]], "the first attempt was given up"
    assert [token for step in steps[begun[1] :] for token in step] == longer


def test_its_clamped_keys_are_not_the_requests(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_rig(512, recheck_share=1.0)
    runner = rig.engine._runner
    forward = runner.forward

    def clamp(chunks: Sequence[Chunk]) -> torch.Tensor:
        logits = forward(chunks)
        runner.num_clamped = num_clamped[0] = num_clamped[0] + 1
        return logits

    num_clamped = [0]
    monkeypatch.setattr(runner, "forward", clamp)
    served(rig)
    compared(rig, 2 * NUM_BLOCKS)
    assert rig.engine.statistics().num_clamped == 1
    assert num_clamped[0] > 1


def test_its_steps_are_short(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, prompt = make_rig(512, make_costs=believing(1e-3), recheck_share=1.0), prompt_of(400, 1)
    served(rig, prompt)
    steps = watched_steps(rig, monkeypatch)
    compared(rig, 2 * 50)
    assert {len(step) for step in steps} == {16}, "of a millisecond for each token: 30 at the most"


def test_it_goes_on_where_it_was(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, prompt = make_rig(512, recheck_share=1.0, max_batched_tokens=32), prompt_of(400, 1)
    served(rig, prompt)
    steps = watched_steps(rig, monkeypatch)
    eventually(lambda: len(steps) > 2)
    rig.engine.generate(greedy(prompt_of(5, 9), 1))
    compared(rig, 2 * 50)
    audited = [token for step in steps for token in step if step != prompt_of(5, 9)]
    assert audited == prompt, "each token once"


def test_nobody_sees_that_it_was_done(make_rig: MakeRig) -> None:
    told: list[ServedPrompt] = []
    rig = make_rig(256, tiers=host_and_disk(), recheck_share=1.0, on_served=[told.append])
    served(rig, prompt_of(40, 3))
    served(rig)  # the longer one is compared first, so that uses would show

    def seen() -> Any:
        records = rig.store._index._records
        ends = {key: (one.named_ms, one.used_ms, one.hard_ms) for key, one in records.items()}
        orders = [
            list(ledger.policy.victims(lambda _: False)) for ledger in rig.store._index._ledgers if ledger
        ]
        on_device = list(rig.pool._policy.victims(lambda _: False))
        costs = rig.engine._planner.costs.known()
        statistics = rig.engine.statistics(), rig.store.statistics()
        return ends, orders, on_device, costs, statistics, rig.engine.recent_plans(), list(told)

    found: list[Any] = []
    rig.on_engine_thread(lambda: found.append(seen()))
    compared(rig, 3 * (NUM_BLOCKS + 5))
    rig.on_engine_thread(lambda: found.append(seen()))
    assert found[1] == found[0]


def test_it_takes_no_more_than_its_share(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, pieces_s = make_rig(256, recheck_share=0.05), list[float]()
    work = rig.engine.rechecker._do_some

    def timed() -> None:
        began_s = time.monotonic()
        work()
        pieces_s.append(time.monotonic() - began_s)

    monkeypatch.setattr(rig.engine.rechecker, "_do_some", timed)
    served(rig)
    eventually(lambda: facts(rig).num_compared > 2)
    audit = facts(rig)
    assert audit.spent_s <= 0.05 * audit.idle_s + 0.05 + max(pieces_s) + 0.02


def test_what_was_compared_is_left_alone_for_a_while(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(256, clock=QUICK, recheck_share=1.0)
    served(rig)
    compared(rig, 2 * NUM_BLOCKS)
    steps = watched_steps(rig, monkeypatch)
    served(rig, PROMPT[:64] + prompt_of(8, 4))
    del steps[:]
    assert compared(rig, 2 * NUM_BLOCKS + 2).num_compared == 2 * NUM_BLOCKS + 2, "only what is new"


def test_a_prompt_longer_than_the_memory_set_aside_is_compared_as_far_as_it_goes(make_rig: MakeRig) -> None:
    rig = make_rig(64, recheck_share=1.0)
    num_aside = rig.engine.rechecker.bench.num_blocks
    assert num_aside == 8
    assert rig.engine.statistics().num_blocks == 56
    served(rig, prompt_of(200, 1))
    audit = compared(rig, 2 * num_aside)
    assert audit.num_compared == 2 * num_aside
    assert 0 < audit.coverage < 1


@pytest.mark.parametrize(
    "options", [{"cache": CacheUse.READ}, {"cache": CacheUse.OFF}], ids=["only reads", "no cache"]
)
def test_a_request_that_leaves_nothing_behind_is_not_remembered(
    make_rig: MakeRig, options: dict[str, Any]
) -> None:
    rig = make_rig(256, recheck_share=1.0)
    served(rig)
    rig.engine.rechecker.forget()
    rig.engine.generate(greedy(PROMPT, 1, **options))
    assert facts(rig).num_prompts == 0


def test_switched_off_it_remembers_nothing_and_takes_no_memory(make_rig: MakeRig) -> None:
    rig = make_rig(256)
    served(rig)
    assert replace(facts(rig), idle_s=0.0) == Audit()
    assert rig.engine.statistics().num_blocks == 256
    with pytest.raises(ConfigError, match="start with recheck_share above 0"):
        rig.engine.rechecker.set_share(0.5)


def test_its_share_changes_while_it_runs(make_rig: MakeRig) -> None:
    rig = make_rig(256, recheck_share=1.0)
    served(rig)
    compared(rig, 1)
    rig.engine.rechecker.set_share(0.0)
    eventually(lambda: facts(rig).num_prompts == 0)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        rig.engine.rechecker.set_share(1.5)
    rig.engine.rechecker.set_share(0.5)
    assert facts(rig).share == 0.5


def test_tokens_are_forgotten_when_nothing_is_stored_of_them(make_rig: MakeRig) -> None:
    rig = make_rig(256, clock=QUICK, recheck_share=1.0)
    served(rig, salt="theirs")
    compared(rig, 2 * NUM_BLOCKS)
    assert facts(rig).num_prompts == 1
    rig.store.clear()
    rig.engine.clear_pool()
    eventually(lambda: facts(rig).num_prompts == 0)
    assert facts(rig).memory_bytes == 0


def test_they_are_forgotten_at_once_when_somebody_says_so(make_rig: MakeRig) -> None:
    rig = make_rig(256, recheck_share=0.001)
    served(rig)
    assert facts(rig).num_prompts == 1
    rig.engine.rechecker.forget()
    eventually(lambda: facts(rig).num_prompts == 0)


def test_neither_tokens_nor_secrets_are_shown_or_logged(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    wrong, secret = dict[bytes, bytes](), "a tenant's secret"
    rig = make_rig(256, tiers=host_and_disk(Fault(Operation.GET, replaced(wrong))), recheck_share=1.0)
    keys = rig.keys(PROMPT, secret)
    wrong[keys[4]] = bytes(rig.model.kv_shape.block_bytes)
    with caplog.at_level(logging.DEBUG):
        served(rig, salt=secret)
        remembered = rig.engine.rechecker._memory.sample(1)
        eventually(lambda: facts(rig).num_wrong > 0)

    assert facts(rig).last_wrong[0].tenant == rig.model.namespace.with_salt(secret).tenant
    told = f"{remembered} {facts(rig)} {caplog.text}"
    assert secret not in told
    assert str(PROMPT[:3])[1:-1] not in told
    assert keys[0].hex() not in told
    assert repr(keys[0]) not in told
    assert "quarantined" in caplog.text


def test_other_weights_make_it_forget(make_rig: MakeRig, tiny_folder: Path) -> None:
    model = load_model(tiny_folder, block_tokens=BLOCK_TOKENS)
    rig = make_rig(256, model=model, recheck_share=1.0)
    served(rig)

    def change() -> None:
        with torch.no_grad():
            model.model.lm_head.weight.mul_(1.5)

    rig.on_engine_thread(change)
    rig.engine.model_changed()
    assert facts(rig).num_prompts == 0
    assert facts(rig).num_wrong == 0
