"""Both sides of the vLLM connector together: what is loaded is right, and whose it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.cost_file import CostFile
from engine_adapter.vllm import keeping
from tests.engine_adapter.vllm_rig import BLOCK, PROMPT, WHOLE, OpenVllm, request
from tests.eventually import eventually


@pytest.mark.parametrize("loading", ["sync", "async"])
@pytest.mark.parametrize("chunk", [3, 4, 7, 1000])
def test_what_was_stored_is_loaded(open_vllm: OpenVllm, loading: str, chunk: int) -> None:
    vllm = open_vllm(loading=loading)
    assert vllm.serve(request(PROMPT), chunk).num_loaded == 0
    vllm.wipe()
    served = vllm.serve(request(PROMPT), chunk)

    assert served.num_loaded == WHOLE
    assert served.is_async == (loading == "async")
    assert vllm.counted["blocks_stored"] == WHOLE // BLOCK


def test_each_block_is_stored_with_its_place_and_its_parent(
    open_vllm: OpenVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm, asked = open_vllm(), request(PROMPT)
    reserve, told = vllm.store.reserve, list[tuple[bytes, bytes, int | None]]()

    def noted(namespace: Any, key: bytes, parent: bytes, nbytes: int, **facts: Any) -> Any:
        told.append((key, parent, facts["first_token"]))
        return reserve(namespace, key, parent, nbytes, **facts)

    monkeypatch.setattr(vllm.store, "reserve", noted)
    vllm.serve(asked, chunk=9)
    keys = vllm.side._tracked(asked).keys[0]  # type: ignore[union-attr]
    assert told == list(zip(keys, [b"", *keys], range(0, WHOLE, BLOCK), strict=False))


def test_at_least_one_token_is_computed(open_vllm: OpenVllm) -> None:
    vllm = open_vllm()
    vllm.serve(request(PROMPT[:WHOLE]))
    vllm.wipe()

    assert vllm.serve(request(PROMPT[:WHOLE])).num_loaded == WHOLE - BLOCK


def test_what_vllm_has_itself_is_not_loaded_but_stored(open_vllm: OpenVllm) -> None:
    vllm = open_vllm()
    vllm.serve(request(PROMPT[:9]))
    vllm.wipe()
    served = vllm.serve(request(PROMPT), num_local=12)
    assert served.num_loaded == 0
    assert vllm.counted["blocks_stored"] == WHOLE // BLOCK
    vllm.wipe()

    assert vllm.serve(request(PROMPT), num_local=8).num_loaded == WHOLE - 8


def test_blocks_of_the_answer_are_stored_as_they_fill(open_vllm: OpenVllm) -> None:
    vllm = open_vllm()
    asked, block_ids = request(PROMPT[:10]), list(range(10))
    vllm.admit(asked, block_ids)
    vllm.step({asked.request_id: (asked, block_ids, 0, 10)})
    for position in range(10, 20):
        asked.all_token_ids.append(position)
        asked.num_tokens += 1
        vllm.step({asked.request_id: (asked, block_ids, position, position + 1)})
    vllm.side.ended(asked)
    vllm.wipe()

    assert vllm.serve(request([*PROMPT[:10], *range(10, 20), 5])).num_loaded == 20


def test_a_token_that_is_not_known_yet_has_no_key(open_vllm: OpenVllm) -> None:
    vllm = open_vllm()
    asked, block_ids = request(PROMPT[:7]), list(range(10))
    vllm.admit(asked, block_ids)
    vllm.step({asked.request_id: (asked, block_ids, 0, 7)})
    output = SimpleNamespace(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=SimpleNamespace(req_ids=[asked.request_id], num_computed_tokens=[7]),
        num_scheduled_tokens={asked.request_id: 1},
        scheduled_spec_decode_tokens={},
        kv_connector_block_state=SimpleNamespace(get_block_ids=lambda _name: (block_ids,)),
    )

    assert vllm.side.plan_step(output).stores == ()


def test_drafted_tokens_are_not_stored(open_vllm: OpenVllm) -> None:
    vllm = open_vllm()
    asked = request(PROMPT[:8])
    vllm.admit(asked, [0, 1])
    output = SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=asked.request_id, num_computed_tokens=0)],
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[]),
        num_scheduled_tokens={asked.request_id: 8},
        scheduled_spec_decode_tokens={asked.request_id: [1, 2]},
        kv_connector_block_state=SimpleNamespace(get_block_ids=lambda _name: ([0, 1],)),
    )
    (order,) = vllm.side.plan_step(output).stores

    assert order.block_ids == (0,)


def lora(folder: Path, name: str) -> Any:
    return SimpleNamespace(lora_name=name, lora_int_id=1, lora_path=str(folder))


def adapter(folder: Path, weights: bytes) -> Path:
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "adapter_config.json").write_text("{}")
    return folder


def test_salts_and_adapters_are_kept_apart(open_vllm: OpenVllm, tmp_path: Path) -> None:
    vllm = open_vllm()
    one, other = adapter(tmp_path / "one", b"1"), adapter(tmp_path / "other", b"2")
    kinds: list[dict[str, Any]] = [
        {}, {"cache_salt": "a"}, {"cache_salt": "b"},
        {"lora_request": lora(one, "a")}, {"lora_request": lora(other, "b")},
    ]  # fmt: skip
    for kind in kinds:
        assert vllm.serve(request(PROMPT, **kind)).num_loaded == 0
    for kind in kinds:
        assert vllm.serve(request(PROMPT, **kind)).num_loaded == WHOLE


def test_a_request_whose_adapter_changes_meanwhile_stores_no_more(
    open_vllm: OpenVllm, tmp_path: Path
) -> None:
    vllm = open_vllm()
    folder = adapter(tmp_path / "one", b"1")
    asked, block_ids = request(PROMPT, lora_request=lora(folder, "a")), list(range(11))
    vllm.admit(asked, block_ids)
    vllm.step({asked.request_id: (asked, block_ids, 0, 20)})
    (folder / "adapter_model.safetensors").write_bytes(b"22")
    vllm.step({asked.request_id: (asked, block_ids, 20, 42)})
    assert vllm.counted["blocks_stored"] == 5
    assert vllm.side.num_to_load(asked, 0) == (0, False)


@pytest.mark.parametrize(
    "facts",
    [
        {"mm_features": [object()]}, {"prompt_embeds": object()}, {"resumable": True},
        {"lora_request": SimpleNamespace(lora_name="a", lora_int_id=1, lora_path="/nowhere")},
    ],
)  # fmt: skip
def test_a_prompt_that_is_more_than_tokens_is_left_alone(open_vllm: OpenVllm, facts: dict[str, Any]) -> None:
    vllm = open_vllm()
    for _ in range(2):
        assert vllm.serve(request(PROMPT, **facts)).num_loaded == 0
    assert "blocks_stored" not in vllm.counted


def test_a_request_that_reads_no_cache_is_stored_all_the_same(open_vllm: OpenVllm) -> None:
    vllm = open_vllm()
    for _ in range(2):
        assert vllm.serve(request(PROMPT, skip_reading_prefix_cache=True)).num_loaded == 0
    assert vllm.serve(request(PROMPT)).num_loaded == WHOLE


def test_a_block_is_a_hit_only_when_every_rank_has_it(open_vllm: OpenVllm) -> None:
    vllm = open_vllm(ranks=3)
    vllm.serve(request(PROMPT))
    vllm.wipe()
    served = vllm.serve(request(PROMPT))
    assert (served.num_loaded, served.is_async) == (WHOLE, True)
    tracked = vllm.side._tracked(request(PROMPT))
    assert tracked is not None
    assert len({keys[0] for keys in tracked.keys}) == 3
    vllm.store.evict([tracked.keys[1][5]])
    vllm.wipe()

    assert vllm.serve(request(PROMPT)).num_loaded == 5 * BLOCK


def test_mode_observe_counts_what_it_would_have_loaded(open_vllm: OpenVllm) -> None:
    vllm = open_vllm(mode="observe")
    for _ in range(2):
        assert vllm.serve(request(PROMPT)).num_loaded == 0
    assert vllm.counted["tokens_observed"] == WHOLE


def test_mode_off_does_nothing(open_vllm: OpenVllm) -> None:
    vllm = open_vllm(mode="off")
    for _ in range(2):
        assert vllm.serve(request(PROMPT)).num_loaded == 0
    assert vllm.counted == {}


def test_mode_verify_finds_a_wrong_block_and_keeps_it_out(open_vllm: OpenVllm) -> None:
    vllm = open_vllm(mode="verify", verify_share=1.0)
    honest = open_vllm(store=vllm.store)
    tracked = honest.side._tracked(request(PROMPT))
    assert tracked is not None
    wrong = memoryview(bytes(range(vllm.block_bytes % 251)) * 251)[: vllm.block_bytes]
    namespace = tracked.namespaces[0]
    vllm.store.put(namespace, tracked.keys[0][0], b"", memoryview(bytearray(wrong).ljust(vllm.block_bytes)))
    assert vllm.serve(request(PROMPT)).num_loaded == 0

    assert (vllm.counted["blocks_compared"], vllm.counted["blocks_wrong"]) == (1, 1)
    assert honest.serve(request(PROMPT)).num_loaded == 0
    assert vllm.serve(request(PROMPT)).num_loaded == 0
    assert vllm.counted["blocks_wrong"] == 1


def test_a_step_waits_a_second_at_most_for_blocks_to_compare(
    open_vllm: OpenVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm = open_vllm(mode="verify", verify_share=1.0)
    vllm.serve(request(PROMPT))
    now_s, waits_s = [100.0], list[float]()

    def stalls(_key: bytes, _out: memoryview, timeout_s: float) -> bool:
        waits_s.append(timeout_s)
        now_s[0] += 0.625
        return False

    monkeypatch.setattr(vllm.store, "now_s", lambda: now_s[0])
    monkeypatch.setattr(vllm.store, "get_into", stalls)
    vllm.serve(request(PROMPT))
    assert waits_s == [1.0, 0.375]


def test_after_a_reset_nothing_is_found(open_vllm: OpenVllm) -> None:
    vllm = open_vllm()
    vllm.serve(request(PROMPT))
    waits, unknown = request(PROMPT), request(PROMPT)
    assert vllm.side.num_to_load(waits, 0) == (WHOLE, False)
    keys = vllm.side._requests[waits.request_id].keys[0]
    vllm.side.forget_all("anew")
    assert set(vllm.store.peek(keys)) == {None}
    assert {vllm.side.num_to_load(asked, 0) for asked in (waits, unknown)} == {(0, False)}
    assert vllm.serve(request(PROMPT)).num_loaded == 0
    assert vllm.serve(request(PROMPT)).num_loaded == WHOLE


def test_a_reset_leaves_a_server_what_it_has_and_finds_none_of_it(open_vllm: OpenVllm) -> None:
    vllm = open_vllm()
    vllm.serve(request(PROMPT))
    shares = open_vllm(store=vllm.store)
    shares.side._settings = replace(shares.settings, store="unix:///nowhere")
    shares.side.forget_all("anew")
    assert shares.serve(request(PROMPT)).num_loaded == 0
    assert vllm.serve(request(PROMPT)).num_loaded == WHOLE


def test_a_request_asked_about_again_is_promised_the_same_and_leaves_no_lease(open_vllm: OpenVllm) -> None:
    vllm = open_vllm()
    vllm.serve(request(PROMPT))
    asked = request(PROMPT)
    assert {vllm.side.num_to_load(asked, 0) for _ in range(5)} == {(WHOLE, False)}
    assert vllm.side.num_to_load(asked, 8) == (WHOLE - 8, False)
    vllm.side.ended(asked)

    assert vllm.store.evict(vllm.side._tracked(request(PROMPT)).keys[0]) == WHOLE // BLOCK  # type: ignore[union-attr]


def test_costs_are_kept_though_nobody_closes_it(open_vllm: OpenVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever stops vLLM's server has its engine killed."""
    vllm = open_vllm()
    vllm.serve(request(PROMPT))
    assert CostFile(vllm.folder, "test").read().steps == ()
    monkeypatch.setattr(keeping, "_BETWEEN_S", 0.0)
    vllm.serve(request(PROMPT))
    eventually(lambda: CostFile(vllm.folder, "test").read().steps != ())
