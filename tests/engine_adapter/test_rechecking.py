"""The audit in idle time: prompts are computed once more, and what tiers have stored of them is compared."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.faulty import Action, Call, Fault, Faulty, Operation, fail, stall
from backends.host import HostBackend
from engine_adapter.engine.audit import Audit
from engine_adapter.engine.models import load_model
from engine_adapter.engine.request import CacheUse
from engine_adapter.engine.runner import Chunk
from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.errors import ConfigError
from kvstore.frame import Header, checksum
from kvstore.served import ServedPrompt
from kvstore.tier import TierSpec
from tests.adapters import make_adapter
from tests.engine_adapter.believing import believing
from tests.engine_adapter.pool_kinds import in_every_pool
from tests.engine_adapter.rig import (
    BLOCK_TOKENS,
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

NUM_TOKENS = 75
NUM_BLOCKS = NUM_TOKENS // BLOCK_TOKENS
PROMPT = prompt_of(NUM_TOKENS, 1)


def host_and_disk(*script: Fault) -> Callable[[Arena], list[TierSpec]]:
    return lambda arena: [
        host_tier(arena, 256 * SLOT_BYTES),
        tier(Faulty(HostBackend(Arena(2**24)), script), "disk"),
    ]


def replaced(wrong: dict[bytes, bytes]) -> Action:
    """Read these blocks as if they had been stored so: other numbers under a checksum that is right."""

    def action(call: Call) -> int | None:
        nbytes = call.proceed()
        if nbytes is not None and (data := wrong.get(call.key)) is not None:
            facts = vars_of(Header.unpack(bytes(call.header)))
            call.payload[:] = data
            call.header[:] = Header(**facts | {"checksum": checksum(data)}).pack()
        return nbytes

    return action


def vars_of(header: Header) -> dict[str, Any]:
    return {name: getattr(header, name) for name in Header.__dataclass_fields__}


def served(rig: Rig, prompt: Sequence[int] = PROMPT, **options: Any) -> None:
    """Serve a prompt whose blocks are then in every tier."""
    rig.engine.generate(greedy(prompt, 1, **options))
    assert rig.engine.flush(10)


def facts(rig: Rig) -> Audit:
    return rig.engine.rechecker.facts()


def compared(rig: Rig, num: int) -> Audit:
    """Wait until so many copies were compared."""
    eventually(lambda: facts(rig).num_compared >= num)
    return facts(rig)


def bytes_of(rig: Rig, prompt: Sequence[int], index: int) -> bytes:
    data = memoryview(bytearray(rig.model.kv_shape.block_bytes))
    assert rig.store.copies.read_into(rig.keys(prompt)[index], "host", data).result(10)
    return bytes(data)


def watched_steps(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, at_third: Callable[[], object] = lambda: None
) -> list[list[int]]:
    """Return a list to which each step adds the tokens it computes, of requests and of the audit."""
    runner, steps = rig.engine._runner, list[list[int]]()
    forward = runner.forward

    def watch(chunks: Sequence[Chunk]) -> torch.Tensor:
        steps.append([token for chunk in chunks for token in chunk.tokens])
        if len(steps) == 3:
            at_third()
        return forward(chunks)

    monkeypatch.setattr(runner, "forward", watch)
    return steps


@in_every_pool
def test_what_every_tier_has_is_compared_in_idle_time_and_found_right(make_rig: MakeRig) -> None:
    rig = make_rig(256, tiers=host_and_disk(), recheck_share=1.0)
    served(rig)

    audit = compared(rig, 3 * NUM_BLOCKS)

    assert (audit.num_compared, audit.num_wrong, audit.num_failed) == (3 * NUM_BLOCKS, 0, 0)
    assert audit.compared_bytes == 3 * NUM_BLOCKS * rig.model.kv_shape.block_bytes
    assert audit.coverage == 1.0
    assert audit.last_at_ms is not None
    assert 0 < audit.spent_s <= audit.idle_s


@pytest.mark.parametrize("index", [0, 4, 8])
def test_a_wrong_block_on_disk_is_found_and_never_served(
    make_rig: MakeRig, clean_ids: CleanIds, index: int
) -> None:
    wrong = dict[bytes, bytes]()
    rig = make_rig(256, tiers=host_and_disk(Fault(Operation.GET, replaced(wrong))), recheck_share=1.0)
    other = prompt_of(NUM_TOKENS, 2)
    rig.engine.rechecker.set_share(0.0)
    served(rig, other)
    key = rig.keys(PROMPT)[index]
    wrong[key] = bytes_of(rig, other, index)
    rig.engine.rechecker.set_share(1.0)
    served(rig)

    eventually(lambda: facts(rig).num_wrong > 0)

    found = facts(rig).last_wrong
    assert [(one.key, one.block, one.tier) for one in found] == [(key, index, "disk")]
    assert found[0].namespace == rig.model.namespace.digest
    assert rig.store.peek(rig.keys(PROMPT)[index:]) == (None,) * (NUM_BLOCKS - index)
    answer = rig.engine.generate(greedy(PROMPT))
    assert answer.token_ids == clean_ids(PROMPT, 12)
    assert sum(answer.usage.tokens_by_source.values()) - answer.usage.tokens_by_source["computed"] == (
        index * BLOCK_TOKENS
    )
    assert "quarantine" in rig.store.health().reason


def test_without_the_audit_it_would_be_served(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    wrong = dict[bytes, bytes]()
    rig = make_rig(tiers=slow_tier([Fault(Operation.GET, replaced(wrong))]))
    served(rig)
    wrong[rig.keys(PROMPT)[4]] = bytes(rig.model.kv_shape.block_bytes)
    rig.forget_device()
    assert rig.engine.generate(greedy(PROMPT)).token_ids != clean_ids(PROMPT, 12)


def test_a_wrong_block_on_the_device_is_found(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    rig = make_rig(256, recheck_share=1.0)
    served(rig)

    def spoil() -> None:
        rig.pool.keys_and_values.fill_(7.0)

    rig.on_engine_thread(spoil)

    eventually(lambda: facts(rig).num_wrong > 0)

    assert (facts(rig).last_wrong[0].block, facts(rig).last_wrong[0].tier) == (0, "device")
    assert rig.engine.generate(greedy(PROMPT)).token_ids == clean_ids(PROMPT, 12)


def test_what_was_computed_on_a_wrong_block_goes_with_it(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    wrong = dict[bytes, bytes]()
    rig = make_rig(256, tiers=host_and_disk(Fault(Operation.GET, replaced(wrong))), recheck_share=1.0)
    longer = PROMPT[:72] + prompt_of(40, 3)
    wrong[rig.keys(PROMPT)[2]] = bytes(rig.model.kv_shape.block_bytes)
    served(rig)
    served(rig, longer)

    eventually(lambda: facts(rig).num_wrong > 0)

    assert rig.store.peek(rig.keys(longer)[2:]) == (None,) * (len(rig.keys(longer)) - 2)
    assert rig.engine.generate(greedy(longer)).token_ids == clean_ids(longer, 12)


FORMS: dict[str, dict[str, Any]] = {
    "bfloat16": {"compute_dtype": "bfloat16"},
    "float16": {"compute_dtype": "float16"},
    "int8": {"kv_dtype": "int8"},
    "fp8": {"kv_dtype": "fp8"},
    "16 bits beside 32": {"kv_dtype": "bfloat16"},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_rounding_is_no_difference_and_another_prompts_block_is(
    make_rig: MakeRig, tiny_folder: Path, form: dict[str, Any]
) -> None:
    wrong = dict[bytes, bytes]()
    model = load_model(tiny_folder, block_tokens=BLOCK_TOKENS, **form)
    script = Fault(Operation.GET, replaced(wrong))
    rig = make_rig(512, tiers=host_and_disk(script), model=model, recheck_share=1.0, max_batched_tokens=40)
    prompts = [prompt_of(60, 5), prompt_of(200, 6)]
    rig.generate_together([greedy(prompt, 40) for prompt in prompts])  # answers are stored as well
    assert rig.engine.flush(10)
    num_copies = 3 * sum((len(prompt) + 39) // BLOCK_TOKENS for prompt in prompts)

    assert compared(rig, num_copies).num_wrong == 0

    wrong[rig.keys(PROMPT)[3]] = bytes_of(rig, prompts[1], 3)
    served(rig)
    eventually(lambda: facts(rig).num_wrong == 1)


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
    quick = Clock(lambda: 100 * time.monotonic())  # for which a quiet moment is soon over
    rig, prompt = make_rig(512, recheck_share=1.0, clock=quick), prompt_of(400, 1)
    steps = watched_steps(rig, monkeypatch)
    rig.engine.generate(greedy(prompt, 100))
    num_at_end = len(steps)
    compared(rig, 1)
    assert sum(map(len, steps[:num_at_end])) == len(prompt) + 99


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

    before = seen()
    compared(rig, 3 * (NUM_BLOCKS + 5))
    assert seen() == before


def test_it_takes_no_more_than_its_share(make_rig: MakeRig) -> None:
    rig = make_rig(256, recheck_share=0.05)
    served(rig)
    eventually(lambda: facts(rig).num_compared > 2)
    audit = facts(rig)
    longest_piece_s = 0.05
    assert audit.spent_s <= 0.05 * audit.idle_s + 0.05 + longest_piece_s


def test_what_was_compared_is_left_alone_for_a_while(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(256, recheck_share=1.0)
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
    rig = make_rig(256, recheck_share=1.0)
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


def test_an_adapters_blocks_are_computed_with_it(
    make_rig: MakeRig, tiny_folder: Path, tmp_path: Path
) -> None:
    adapter = make_adapter(tmp_path / "adapter", tiny_folder, seed=1)
    model = load_model(tiny_folder, block_tokens=BLOCK_TOKENS, loras={"mine": adapter})
    rig = make_rig(256, model=model, recheck_share=1.0)
    served(rig, lora="mine")
    audit = compared(rig, 2 * NUM_BLOCKS)
    assert audit.num_wrong == 0


def test_a_tier_that_fails_is_passed_over(make_rig: MakeRig) -> None:
    fault = Fault(Operation.GET, fail(OSError("not now")))
    rig = make_rig(256, tiers=host_and_disk(fault), recheck_share=1.0)
    served(rig)
    audit = compared(rig, 2 * NUM_BLOCKS)
    assert audit.num_wrong == audit.num_failed == 0


def test_a_tier_that_hangs_keeps_no_request_and_no_end_waiting(
    make_rig: MakeRig, clean_ids: CleanIds
) -> None:
    gate = threading.Event()
    rig = make_rig(256, tiers=host_and_disk(Fault(Operation.GET, stall(gate.wait))), recheck_share=1.0)
    served(rig)
    eventually(lambda: facts(rig).num_compared == 2)
    assert rig.engine.generate(greedy(PROMPT)).token_ids == clean_ids(PROMPT, 12)
    assert rig.engine.close(10)
    gate.set()
    eventually(lambda: rig.store.num_holds == 0)


def test_an_error_ends_the_attempt_and_nothing_else(
    make_rig: MakeRig, clean_ids: CleanIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(256, recheck_share=1.0)
    served(rig)

    def broken(*_: object) -> int:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(rig.engine.rechecker.bench, "compute", broken)
    eventually(lambda: facts(rig).num_failed == 1)
    assert facts(rig).num_prompts == 0
    monkeypatch.undo()
    assert rig.engine.generate(greedy(PROMPT)).token_ids == clean_ids(PROMPT, 12)
    assert compared(rig, 2 * NUM_BLOCKS).num_wrong == 0


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
