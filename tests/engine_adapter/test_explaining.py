"""Why a request was served as it was, and what would be done with a prompt that is not run."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.engine.accounts import Account
from engine_adapter.engine.misses import Difference
from engine_adapter.engine.request import CacheUse, Mode
from kvstore.absences import Cause
from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.errors import EngineClosedError, PromptTooLongError, RequestError
from kvstore.keys import chain_keys
from kvstore.leases import Hit
from kvstore.namespace import Namespace, canonical_json
from kvstore.store import TieredStore
from kvstore.tier import TierSpec
from policies.planning import Choice
from policies.reload import AlwaysCompute, Measured
from tests.engine_adapter.rig import BLOCK_TOKENS, MakeRig, Rig, greedy, prompt_of, tier
from tests.eventually import eventually
from tests.kvstore.conftest import SharedDict

PROMPT = prompt_of(100, 1)  # 12 blocks of 8 tokens, and 4 tokens more
NOBODY = "block 0, from token 0 on, was stored by nobody, as far back as is known"
ALL_LOADED = "every block that a tier has is loaded"


def last(rig: Rig) -> Account:
    return rig.engine.recent_plans()[0]


def warm(rig: Rig, prompt: list[int] = PROMPT, salt: str = "") -> None:
    """Have a prompt's blocks stored below the device, and not on it."""
    rig.engine.generate(greedy(prompt, 1, salt=salt))
    assert rig.engine.flush(10)
    rig.forget_device()


def other_namespace(rig: Rig, salt: str = "", **changes: object) -> Namespace:
    return replace(rig.model.namespace.with_salt(salt), **changes)  # type: ignore[arg-type]


def store_under(store: TieredStore, namespace: Namespace, prompt: list[int], num_bytes: int = 4608) -> None:
    """Store blocks of a prompt as a server with that namespace would."""
    parent = b""
    for key in chain_keys(namespace.digest, prompt, namespace.block_tokens):
        assert store.put(namespace, key, parent, memoryview(bytes(num_bytes)))
        parent = key


def test_an_account_that_cannot_be_kept_costs_nobody_an_answer(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object) -> None:
        raise ArithmeticError("costs that are no numbers")

    rig = make_rig()
    monkeypatch.setattr(rig.engine._accounts, "note_costs", fail)
    answers = [rig.engine.generate(greedy(PROMPT, 1)) for _ in range(2)]
    assert [answer.reason for answer in answers] == ["length", "length"]
    assert rig.engine.health().ok


def test_a_request_that_loads_leaves_its_plan_behind(make_rig: MakeRig) -> None:
    rig = make_rig()
    warm(rig)
    usage = rig.engine.generate(greedy(PROMPT, 1)).usage
    account = last(rig)
    assert (account.number, account.ended, account.mode) == (1, "length", Mode.SERVE)
    assert account.prompt_tokens == 100
    assert account.planned == usage.planned
    assert account.planned is not None
    assert account.planned.policy == "under test"
    assert account.planned.chosen == "load"
    assert account.planned.is_served
    assert account.planned.tokens_by_tier == {"host": 96}
    assert account.planned.expected_s == account.planned.predicted_s
    assert account.reason == account.planned.reason
    assert account.tokens_by_source == {"computed": 4, "host": 96}
    assert account.ttft_s == usage.ttft_s
    assert account.miss is None
    assert account.namespace == rig.model.namespace.label != ""
    assert rig.engine.statistics().plans == {"load": 1}


def test_what_is_planned_and_not_served_is_expected_to_take_as_long_as_computing(make_rig: MakeRig) -> None:
    rig = make_rig()
    warm(rig)
    rig.engine.generate(greedy(PROMPT, 1, mode=Mode.OBSERVE))
    planned = last(rig).planned
    assert planned is not None
    assert (planned.mode, planned.is_served, planned.chosen) == (Mode.OBSERVE, False, "load")
    assert replace(planned, if_computed_s=9.0).expected_s == 9.0
    assert replace(planned, if_computed_s=9.0, is_served=True).expected_s == planned.predicted_s


def test_a_plan_that_loads_nothing_is_counted_as_one_to_compute(make_rig: MakeRig) -> None:
    rig = make_rig(policy=AlwaysCompute())
    warm(rig)
    rig.engine.generate(greedy(PROMPT, 1))
    assert rig.engine.statistics().plans == {"compute": 1}


def test_the_last_256_requests_are_remembered_the_latest_first(make_rig: MakeRig) -> None:
    rig = make_rig()
    for _ in range(260):
        rig.engine.generate(greedy([5], 1))
    numbers = [account.number for account in rig.engine.recent_plans()]
    assert numbers == list(range(259, 3, -1))


def test_an_account_holds_neither_tokens_nor_salts(make_rig: MakeRig) -> None:
    rig = make_rig()
    warm(rig, salt="very-secret")
    rig.engine.generate(greedy(PROMPT, 1, salt="very-secret"))
    shown = repr(rig.engine.recent_plans())
    assert "very-secret" not in shown
    assert rig.model.namespace.with_salt("very-secret").salt not in shown
    assert ", ".join(map(str, PROMPT[:3])) not in shown


@pytest.mark.parametrize(
    ("prompt", "options", "reason"),
    [
        (PROMPT, {"mode": Mode.OFF}, "the mode is off: there is no cache"),
        (PROMPT, {"cache": CacheUse.WRITE}, "the request asks for no lookup"),
        (PROMPT[:5], {}, "the prompt is shorter than a block of 8 tokens"),
        (
            PROMPT,
            {},
            "nothing to load: block 0, from token 0 on, was stored by nobody, as far back as is known",
        ),
    ],
)
def test_a_request_with_nothing_to_load_says_why(
    make_rig: MakeRig, prompt: list[int], options: dict[str, object], reason: str
) -> None:
    rig = make_rig()
    rig.engine.generate(greedy(prompt, 1, **options))
    assert (last(rig).planned, last(rig).reason) == (None, reason)


def test_what_the_device_has_needs_no_plan(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.engine.generate(greedy(PROMPT, 1))
    rig.engine.generate(greedy(PROMPT, 1))
    assert (last(rig).planned, last(rig).reason) == (None, "nothing to load: the device has every block")


def test_the_cause_is_the_one_at_the_beginning_not_what_came_of_it(make_rig: MakeRig) -> None:
    rig = make_rig()
    warm(rig)
    rig.store.evict(rig.keys(PROMPT)[6:7])
    rig.engine.generate(greedy(PROMPT, 1))
    miss = last(rig).miss
    assert miss is not None
    assert (miss.index, miss.first_token, miss.cause, miss.tier) == (6, 48, Cause.CLEARED, "host")


def test_another_namespace_with_the_same_tokens_is_named_after_a_restart(make_rig: MakeRig) -> None:
    rig = make_rig()
    store_under(rig.store, other_namespace(rig, kv_dtype="bfloat16"), PROMPT)
    rig.engine.generate(greedy(prompt_of(50, 9), 1))  # has the namespaces read, behind
    eventually(lambda: all(thread.name != "namespaces" for thread in threading.enumerate()))
    rig.engine.generate(greedy(PROMPT, 1))
    miss = last(rig).miss
    assert miss is not None
    assert miss.differences == (Difference("kv_dtype", "float32", "bfloat16"),)
    assert last(rig).reason.endswith(
        "is stored in another namespace, which differs: kv_dtype is float32, there bfloat16"
    )


def test_explaining_runs_nothing_and_touches_nothing(make_rig: MakeRig) -> None:
    rig = make_rig()
    warm(rig)
    before = rig.engine.statistics()
    looked_up = rig.store.statistics().num_blocks_wanted
    explained = rig.engine.explain(PROMPT)
    assert explained.tiers == ("host",) * 12
    assert explained.tokens_by_tier == {"host": 96}
    assert explained.chosen == "load"
    assert all(explained.is_loaded(index) for index in range(12))
    assert explained.miss is None
    assert explained.reason == ALL_LOADED
    after = rig.engine.statistics()
    assert (after.num_steps, after.requests) == (before.num_steps, before.requests)
    assert rig.store.statistics().num_blocks_wanted == looked_up
    assert rig.store.num_holds == 0
    assert rig.engine.recent_plans()[0].number == 0


def test_the_plan_is_the_one_that_the_request_gets(make_rig: MakeRig) -> None:
    rig = make_rig(policy=Measured())
    warm(rig)
    rig.on_engine_thread(lambda: rig.engine._planner.costs.note_copy(1e-6, 0.0))
    explained = rig.engine.explain(PROMPT)
    assert explained.loads["host"].bytes_per_s > 0
    prediction = explained.plan.prediction
    assert 0 < prediction.ttft_s <= min(prediction.if_computed_s, prediction.if_loaded_s)
    rig.engine.generate(greedy(PROMPT, 1))
    planned = last(rig).planned
    assert planned is not None
    assert planned.chosen == explained.chosen


def test_blocks_on_the_device_are_neither_loaded_nor_computed(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.engine.generate(greedy(PROMPT, 1))
    explained = rig.engine.explain(PROMPT)
    assert set(explained.tiers) == {"device"}
    assert set(explained.plan.choices) == {Choice.LOAD}
    assert explained.chosen == "compute"
    assert explained.loads == {}
    assert not explained.is_loaded(0)


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        (Mode.OFF, "the mode is off: everything is computed"),
        (
            Mode.OBSERVE,
            "the mode is observe: nothing is loaded; mode serve: every block that a tier has is loaded",
        ),
    ],
)
def test_a_mode_that_loads_nothing_is_said(make_rig: MakeRig, mode: Mode, reason: str) -> None:
    rig = make_rig()
    warm(rig)
    explained = rig.engine.explain(PROMPT, mode=mode)
    assert (explained.mode, explained.reason) == (mode, reason)
    assert not explained.is_loaded(0)


def test_each_cause_of_a_miss_is_named(make_rig: MakeRig) -> None:
    now_ms = 1_000_000
    rig = make_rig(clock=Clock(wall_ms=lambda: now_ms))
    prompts = {cause: prompt_of(20, number) for number, cause in enumerate(Cause, start=50)}
    for prompt in prompts.values():
        warm(rig, prompt)

    def key(cause: Cause) -> bytes:
        return rig.keys(prompts[cause])[0]

    def cause_of(prompt: list[int]) -> Cause | None:
        miss = rig.engine.explain(prompt).miss
        return None if miss is None else miss.cause

    rig.store.evict([key(Cause.CLEARED)])
    rig.store.quarantine(key(Cause.QUARANTINED))
    assert cause_of(prompts[Cause.CLEARED]) is Cause.CLEARED
    assert cause_of(prompts[Cause.QUARANTINED]) is Cause.QUARANTINED
    assert cause_of(prompt_of(20, 99)) is Cause.NEVER_STORED
    assert cause_of(prompts[Cause.EXPIRED]) is None
    rig.engine.generate(greedy(prompt_of(20, 98), 1, ttl_s=1))
    assert rig.engine.flush(10)
    now_ms += 2000
    assert cause_of(prompt_of(20, 98)) is Cause.EXPIRED


def test_a_field_that_differs_is_named_with_both_values(make_rig: MakeRig) -> None:
    rig = make_rig()
    config = json.loads(rig.model.namespace.model_config)
    config["rope_parameters"]["rope_theta"] = 500000.0
    changes = {"model_config": canonical_json(config), "lora": "a" * 80}
    store_under(rig.store, other_namespace(rig, **changes), PROMPT)
    miss = rig.engine.explain(PROMPT).miss
    assert miss is not None
    shown = {one.field: (one.here, one.there) for one in miss.differences}
    assert list(shown) == ["lora", "model_config.rope_parameters.rope_theta"]
    assert shown["lora"] == ("none", "a" * 60 + "…")
    assert shown["model_config.rope_parameters.rope_theta"] == ("10000.0", "500000.0")


def test_another_block_size_is_found_out(make_rig: MakeRig) -> None:
    rig = make_rig()
    store_under(rig.store, other_namespace(rig, block_tokens=2 * BLOCK_TOKENS), PROMPT, 9216)
    miss = rig.engine.explain(PROMPT).miss
    assert miss is not None
    assert miss.differences == (Difference("block_tokens", "8", "16"),)


@pytest.mark.parametrize("holder", [15, 16])
def test_it_is_said_when_not_all_namespaces_of_a_tenant_were_searched(make_rig: MakeRig, holder: int) -> None:
    rig = make_rig()
    # The later ones differ in more fields, so that they come last.
    changes = [{"lora": f"{number:02}", "kv_dtype": "int8"} for number in range(18)]
    for number, changed in enumerate(changes):
        wanted = {**changed, "compute_dtype": "float16"} if number > 15 else changed
        prompt = PROMPT if number == holder else prompt_of(50, 1000 + number)
        store_under(rig.store, other_namespace(rig, **wanted), prompt)

    miss = rig.engine.explain(PROMPT).miss
    assert miss is not None
    is_found = holder == 15
    assert (bool(miss.differences), miss.num_unsearched) == ((True, 0) if is_found else (False, 2))
    told = "; 2 more of this tenant's namespaces, which differ most, were not searched"
    assert miss.sentence().endswith(told) != is_found


def over(medium: SharedDict) -> Callable[[Arena], list[TierSpec]]:
    return lambda _arena: [tier(medium, "shared")]


def test_a_shared_medium_is_asked_what_others_have_stored(make_rig: MakeRig) -> None:
    medium = SharedDict()
    first = make_rig(tiers=over(medium))
    warm(first)
    store_under(first.store, other_namespace(first, kv_dtype="bfloat16"), prompt_of(50, 3))
    assert first.store.flush(10)
    second = make_rig(tiers=over(medium))
    explained = second.engine.explain(PROMPT)
    assert (set(explained.tiers), explained.miss) == ({"shared"}, None)
    miss = second.engine.explain(prompt_of(50, 3)).miss
    assert miss is not None
    assert [one.field for one in miss.differences] == ["kv_dtype"]


def test_what_turns_out_to_be_there_is_missing_no_more_and_what_was_computed_since_still_is(
    make_rig: MakeRig,
) -> None:
    rig = make_rig()
    keys = rig.keys(PROMPT)
    sequence: Any = SimpleNamespace(miss=None)

    def missing_after(*tiers: str | None) -> int:
        hit = Hit(keys, (*tiers, *[None] * (12 - len(tiers))), [], 0.0, lambda _: None)
        rig.on_engine_thread(lambda: rig.engine._accounts.looked_up(sequence, hit))
        return int(sequence.miss.index)

    assert missing_after() == 0
    assert missing_after("disk", "disk", "disk", "disk") == 4
    assert missing_after("disk", "disk", "disk", "disk", "device", "device") == 4


def test_case_19_another_tenants_namespace_is_never_named(make_rig: MakeRig) -> None:
    rig = make_rig()
    store_under(rig.store, other_namespace(rig, salt="theirs", kv_dtype="bfloat16"), PROMPT)
    for salt in ("", "ours"):
        miss = rig.engine.explain(PROMPT, salt=salt).miss
        assert miss is not None
        assert (miss.cause, miss.differences) == (Cause.NEVER_STORED, ())
    miss = rig.engine.explain(PROMPT, salt="theirs").miss
    assert miss is not None
    assert [one.field for one in miss.differences] == ["kv_dtype"]


def test_the_engine_goes_on_while_manifests_are_read(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    is_asked, may_answer = threading.Event(), threading.Event()

    def slowly(_store: TieredStore, _timeout_s: float = 5.0) -> list[Namespace]:
        is_asked.set()
        assert may_answer.wait(20)
        return []

    monkeypatch.setattr(TieredStore, "known_namespaces", slowly)
    explaining = threading.Thread(target=rig.engine.explain, args=(PROMPT,))
    explaining.start()
    assert is_asked.wait(20)
    assert rig.engine.generate(greedy(PROMPT, 3)).reason == "length"
    may_answer.set()
    explaining.join(20)
    assert not explaining.is_alive()


def test_a_prompt_that_could_not_be_served_is_not_explained(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=8)
    with pytest.raises(RequestError):
        rig.engine.explain([])
    with pytest.raises(RequestError):
        rig.engine.explain([10**6])
    with pytest.raises(PromptTooLongError):
        rig.engine.explain(prompt_of(100, 1))
    rig.engine.close()
    with pytest.raises(EngineClosedError):
        rig.engine.explain(PROMPT[:20])


def test_the_mode_can_be_changed_while_requests_come(make_rig: MakeRig) -> None:
    rig = make_rig()
    warm(rig)
    for mode, is_loaded in ((Mode.OBSERVE, False), (Mode.OFF, False), (Mode.SERVE, True)):
        rig.engine.mode = mode
        rig.engine.generate(greedy(PROMPT, 1))
        assert last(rig).mode is mode
        assert ("host" in last(rig).tokens_by_source) is is_loaded
        rig.forget_device()
