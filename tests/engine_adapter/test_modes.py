from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from engine_adapter.engine.request import CacheUse, Mode
from policies.reload import Measured
from tests.engine_adapter.believing import QUICK, believing
from tests.engine_adapter.rig import BLOCK_TOKENS, CleanIds, MakeRig, Rig, greedy, prompt_of, slow_tier

LOADING = believing(1e-3, {"disk": QUICK, "host": QUICK})


def stored(rig: Rig, prompt: Sequence[int]) -> None:
    """Leave the blocks of ``prompt`` in the store alone."""
    rig.engine.generate(greedy(prompt, 1, mode=Mode.SERVE))
    assert rig.engine.flush(10)
    rig.forget_device()


def swapped(rig: Rig, prompt: Sequence[int], index: int, data: bytes) -> None:
    """Store ``data`` under the key of block ``index``, as a fault in whoever stores would."""
    keys = rig.keys(prompt)
    assert rig.store.evict([keys[index]]) == 1
    parent = keys[index - 1] if index else b""
    assert rig.store.put(rig.model.namespace.with_salt(""), keys[index], parent, memoryview(data))
    assert rig.engine.flush(10)


def bytes_of(rig: Rig, prompt: Sequence[int], index: int) -> bytes:
    data = bytearray(rig.model.kv_shape.block_bytes)
    assert rig.store.get_into(rig.keys(prompt)[index], memoryview(data))
    return bytes(data)


def test_off_shares_nothing_and_stores_nothing(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    rig, prompt = make_rig(mode=Mode.OFF), prompt_of(75, 1)
    answers = [rig.engine.generate(greedy(prompt)) for _ in range(2)]

    assert [answer.token_ids for answer in answers] == [clean_ids(prompt, 12)] * 2
    assert [answer.usage.tokens_by_source for answer in answers] == [{"computed": 75}] * 2
    assert rig.engine.flush(10)
    assert rig.store.peek(rig.keys(prompt)) == (None,) * 9
    assert rig.pool.num_cached == 0
    assert answers[1].usage.planned is None


def test_observe_stores_and_predicts_and_loads_nothing(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    rig = make_rig(tiers=slow_tier([]), policy=Measured(), make_costs=LOADING, mode=Mode.OBSERVE)
    prompt = prompt_of(75, 1)
    assert rig.engine.generate(greedy(prompt, 1)).usage.planned is None  # there was nothing to load
    assert rig.engine.flush(10)
    assert rig.store.peek(rig.keys(prompt))[0] is not None
    rig.forget_device()

    answer = rig.engine.generate(greedy(prompt))

    assert answer.token_ids == clean_ids(prompt, 12)
    assert answer.usage.tokens_by_source == {"computed": 75}
    planned = answer.usage.planned
    assert planned is not None
    assert (planned.policy, planned.mode) == ("under test", Mode.OBSERVE)
    assert planned.tokens_by_tier == {"disk": 72}
    assert planned.reason.startswith("the mode is observe: nothing is loaded; mode serve: ")
    assert planned.if_computed_s == pytest.approx(0.075)
    assert 0 < planned.predicted_s < 0.075
    assert planned.actual_s is not None
    assert planned.saved_s == pytest.approx(planned.if_computed_s - planned.predicted_s)
    assert rig.engine.statistics().saved_s == pytest.approx(planned.saved_s)


def test_observe_shares_what_is_on_the_device(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    rig, prompt = make_rig(mode=Mode.OBSERVE), prompt_of(75, 1)
    rig.engine.generate(greedy(prompt, 1))

    answer = rig.engine.generate(greedy(prompt))

    assert answer.usage.tokens_by_source == {"computed": 3, "device": 72}
    assert answer.token_ids == clean_ids(prompt, 12)


def test_serve_tells_what_it_saved(make_rig: MakeRig) -> None:
    rig = make_rig(tiers=slow_tier([]), policy=Measured(), make_costs=LOADING)
    prompt = prompt_of(75, 1)
    stored(rig, prompt)

    planned = rig.engine.generate(greedy(prompt)).usage.planned

    assert planned is not None
    assert planned.mode is Mode.SERVE
    assert planned.actual_s is not None
    assert planned.saved_s == pytest.approx(0.075 - planned.actual_s)


def test_the_mode_changes_while_running_and_by_request(make_rig: MakeRig) -> None:
    rig, prompt = make_rig(tiers=slow_tier([])), prompt_of(75, 1)
    stored(rig, prompt)

    def loaded(mode: Mode | None = None) -> int:
        answer = rig.engine.generate(greedy(prompt, 1, mode=mode, cache=CacheUse.READ))
        rig.forget_device()
        return answer.usage.tokens_by_source.get("disk", 0)

    assert loaded() == 72
    assert loaded(Mode.OBSERVE) == 0
    rig.engine.mode = Mode.OBSERVE
    assert loaded() == 0
    assert loaded(Mode.SERVE) == 72
    rig.engine.mode = Mode.OFF
    assert loaded() == 0
    rig.engine.mode = Mode.SERVE
    assert loaded() == 72


def test_verify_passes_blocks_that_are_equal_and_answers_from_computing(
    make_rig: MakeRig, clean_ids: CleanIds
) -> None:
    rig, prompt = make_rig(mode=Mode.VERIFY, verify_share=1.0), prompt_of(75, 1)
    stored(rig, prompt)

    answer = rig.engine.generate(greedy(prompt))

    assert answer.token_ids == clean_ids(prompt, 12)
    assert answer.usage.tokens_by_source == {"computed": 75}
    assert answer.usage.planned is not None
    assert answer.usage.planned.reason.startswith(
        "the mode is verify: this hit was computed, to be compared "
    )
    statistics = rig.engine.statistics()
    assert (statistics.num_verified, statistics.num_found_wrong) == (9, 0)


@pytest.mark.parametrize("chunk", [5, 8, 20])
def test_verify_allows_for_rounding_that_depends_on_how_a_prompt_is_cut(
    make_rig: MakeRig, chunk: int
) -> None:
    rig = make_rig(mode=Mode.VERIFY, verify_share=1.0, max_batched_tokens=chunk, max_sequences=4)
    prompt = prompt_of(200, 1)
    rig.generate_together([greedy(prompt_of(30, 2), 4), greedy(prompt, 1), greedy(prompt_of(20, 3), 9)])
    assert rig.engine.flush(10)
    rig.forget_device()

    rig.engine.generate(greedy(prompt))

    statistics = rig.engine.statistics()
    assert (statistics.num_verified, statistics.num_found_wrong) == (25, 0)


def test_verify_checks_the_share_of_hits_it_is_told_to(make_rig: MakeRig) -> None:
    rig, prompt = make_rig(mode=Mode.VERIFY, verify_share=0.25), prompt_of(75, 1)
    stored(rig, prompt)
    loaded = []
    for _ in range(8):
        answer = rig.engine.generate(greedy(prompt, 1, cache=CacheUse.READ))
        loaded.append(answer.usage.tokens_by_source.get("host", 0))
        rig.forget_device()

    assert loaded == [72, 72, 72, 0] * 2
    assert rig.engine.statistics().num_verified == 2 * 9


WRONG = ["another prompt's", "shifted", "one layer's keys negated", "zeros", "not a number"]


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("index", [0, 4, 8])
def test_verify_finds_a_wrong_block_keeps_it_out_and_answers_cleanly(
    make_rig: MakeRig, clean_ids: CleanIds, what: str, index: int
) -> None:
    rig = make_rig(mode=Mode.VERIFY, verify_share=1.0)
    prompt, other = prompt_of(75, 1), prompt_of(75, 2)
    stored(rig, prompt)
    stored(rig, other)
    right = bytes_of(rig, prompt, index)
    plane = len(right) // (2 * rig.model.kv_shape.num_layers)
    token = plane // BLOCK_TOKENS
    keys = memoryview(right[:plane]).cast("f").tolist()
    wrong = {
        "another prompt's": bytes_of(rig, other, index),
        "shifted": b"".join(
            right[at + token : at + plane] + right[at : at + token] for at in range(0, len(right), plane)
        ),
        "one layer's keys negated": struct.pack(f"{len(keys)}f", *(-key for key in keys)) + right[plane:],
        "zeros": bytes(len(right)),
        "not a number": b"\xff" * len(right),
    }
    swapped(rig, prompt, index, wrong[what])

    answer = rig.engine.generate(greedy(prompt))

    assert answer.token_ids == clean_ids(prompt, 12)
    statistics = rig.engine.statistics()
    assert (statistics.num_verified, statistics.num_found_wrong) == (9, 1)
    key = rig.keys(prompt)[index]
    rig.forget_device()
    assert rig.store.peek([key]) == (None,)
    again = rig.engine.generate(greedy(prompt, mode=Mode.SERVE))
    assert again.token_ids == clean_ids(prompt, 12)
    assert again.usage.tokens_by_source.get("host", 0) == index * BLOCK_TOKENS
    assert rig.store.reserve(rig.model.namespace, key, b"", len(right)) is None


def test_what_a_served_request_computed_on_a_wrong_block_is_not_believed_either(
    make_rig: MakeRig, clean_ids: CleanIds
) -> None:
    rig, prompt = make_rig(verify_share=1.0), prompt_of(40, 1)
    longer = prompt + prompt_of(40, 2)
    stored(rig, prompt)
    swapped(rig, prompt, 3, bytes_of(rig, prompt, 2))
    believed = rig.engine.generate(greedy(longer, mode=Mode.SERVE))
    assert believed.token_ids != clean_ids(longer, 12)
    rig.engine.flush(10)
    rig.forget_device()

    rig.engine.generate(greedy(prompt, 1, mode=Mode.VERIFY))
    assert rig.engine.statistics().num_found_wrong == 1
    rig.engine.flush(10)
    rig.forget_device()

    again = rig.engine.generate(greedy(longer, mode=Mode.SERVE))
    assert again.token_ids == clean_ids(longer, 12)
    assert again.usage.tokens_by_source["host"] == 3 * BLOCK_TOKENS


def test_without_verifying_a_wrong_block_would_be_believed(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    """What the others find makes a difference to the answer."""
    rig, prompt, other = make_rig(), prompt_of(75, 1), prompt_of(75, 2)
    stored(rig, prompt)
    stored(rig, other)
    swapped(rig, prompt, 4, bytes_of(rig, other, 4))

    assert rig.engine.generate(greedy(prompt)).token_ids != clean_ids(prompt, 12)


def test_verify_of_a_request_that_is_cancelled_leaves_nothing_behind(make_rig: MakeRig) -> None:
    rig, prompt = make_rig(mode=Mode.VERIFY, verify_share=1.0, max_batched_tokens=32), prompt_of(400, 1)
    stored(rig, prompt)
    events = rig.engine.stream(greedy(prompt, 100))
    next(events)
    events.close()  # type: ignore[attr-defined]
    rig.engine.check()
