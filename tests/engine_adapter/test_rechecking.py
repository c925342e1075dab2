"""The audit in idle time: prompts are computed once more, and what tiers have stored of them is compared."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from backends.faulty import Fault, Faulty, Operation, fail, stall
from backends.host import HostBackend
from engine_adapter.engine.models import load_model
from kvstore.arena import Arena
from kvstore.tier import TierSpec
from tests.adapters import make_adapter
from tests.engine_adapter.pool_kinds import in_every_pool
from tests.engine_adapter.rechecks import (
    NUM_BLOCKS,
    NUM_TOKENS,
    PROMPT,
    QUICK,
    bytes_of,
    compared,
    facts,
    host_and_disk,
    replaced,
    served,
)
from tests.engine_adapter.rig import (
    BLOCK_TOKENS,
    SLOT_BYTES,
    CleanIds,
    Events,
    MakeRig,
    greedy,
    host_tier,
    moody,
    prompt_of,
    slow_tier,
    tier,
)
from tests.eventually import eventually


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
    rig = make_rig(
        512, tiers=host_and_disk(script), model=model, clock=QUICK, recheck_share=1.0, max_batched_tokens=40
    )
    prompts = [prompt_of(60, 5), prompt_of(200, 6)]
    rig.generate_together([greedy(prompt, 40) for prompt in prompts])  # answers are stored as well
    assert rig.engine.flush(10)
    num_copies = 3 * sum((len(prompt) + 39) // BLOCK_TOKENS for prompt in prompts)

    assert compared(rig, num_copies).num_wrong == 0

    wrong[rig.keys(PROMPT)[3]] = bytes_of(rig, prompts[1], 3)
    served(rig)
    eventually(lambda: facts(rig).num_wrong == 1)


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
    rig = make_rig(256, clock=QUICK, recheck_share=1.0)
    served(rig)

    def broken(*_: object) -> int:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(rig.engine.rechecker.bench, "compute", broken)
    eventually(lambda: facts(rig).num_failed == 1)
    assert facts(rig).num_prompts == 0
    monkeypatch.undo()
    assert rig.engine.generate(greedy(PROMPT)).token_ids == clean_ids(PROMPT, 12)
    assert compared(rig, 2 * NUM_BLOCKS).num_wrong == 0


@in_every_pool
def test_under_pressure_nothing_that_is_right_is_called_wrong(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    random = Random(7)

    def tiers(arena: Arena) -> list[TierSpec]:
        disk = Faulty(HostBackend(Arena(2**24)), [Fault(Operation.GET, moody(random))])
        return [host_tier(arena, 24 * SLOT_BYTES), tier(disk, "disk", 60 * SLOT_BYTES, cooldown_s=0.05)]

    rig = make_rig(64, tiers=tiers, clock=QUICK, recheck_share=1.0, max_batched_tokens=48, max_sequences=6)
    stems, num_before = [prompt_of(120, number) for number in range(3)], 0
    for burst in range(4):
        prompts = [random.choice(stems)[: random.randrange(20, 120)] + prompt_of(9, burst) for _ in range(6)]
        heard = [Events() for _ in prompts]
        handles = [
            rig.engine.submit(greedy(prompt, random.randrange(1, 12)), events)
            for prompt, events in zip(prompts, heard, strict=True)
        ]
        rig.engine.cancel(random.choice(handles))
        for prompt, events in zip(prompts, heard, strict=True):
            reason = events.finished().reason
            expected = clean_ids(prompt, 12)[: len(events.token_ids)]
            assert (reason in {"length", "cancelled"}, events.token_ids) == (True, expected)
        num_before = compared(rig, num_before + 1).num_compared
        rig.engine.check()
    assert (facts(rig).num_wrong, facts(rig).num_failed) == (0, 0)
    assert rig.store.statistics().num_quarantined == 0
