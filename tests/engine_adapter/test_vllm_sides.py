"""Both sides of the vLLM connector together: what is loaded is right, and what cannot be is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from backends.faulty import Fault, Operation, fail, flip_byte, stall
from kvstore.arena import Arena
from kvstore.store import StoreConfig, TieredStore
from tests.engine_adapter.rig import host_tier, moody, slow_tier
from tests.engine_adapter.vllm_rig import BLOCK, Vllm, request

PROMPT = list(range(3, 3 + 42))
WHOLE = 40
OpenVllm = Callable[..., Vllm]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Vllm]]:
    """Open a stand-in for vLLM with a store of its own: in memory, or behind a medium that may fail."""
    stores: list[TieredStore] = []

    def open_vllm(
        script: list[Fault] | None = None, *, store: Any = None, ranks: int = 1, **given: Any
    ) -> Vllm:
        if store is None:
            arena = Arena(2**24)
            tiers = [host_tier(arena, 2**23)] if script is None else slow_tier(script)(arena)
            store = TieredStore(tiers, arena, StoreConfig(audit_share=1.0))
            stores.append(store)
        return Vllm(store, tmp_path, given, ranks)

    yield open_vllm
    for store in stores:
        store.close()


def flush(vllm: Vllm) -> None:
    assert vllm.store.flush(10)


@pytest.mark.parametrize("loading", ["sync", "async"])
@pytest.mark.parametrize("chunk", [3, 4, 7, 1000])
def test_what_was_stored_is_loaded(opened: OpenVllm, loading: str, chunk: int) -> None:
    vllm = opened(loading=loading)
    assert vllm.serve(request(PROMPT), chunk).num_loaded == 0
    vllm.wipe()
    served = vllm.serve(request(PROMPT), chunk)

    assert served.num_loaded == WHOLE
    assert served.is_async == (loading == "async")
    assert vllm.counted["blocks_stored"] == WHOLE // BLOCK


def test_at_least_one_token_is_computed(opened: OpenVllm) -> None:
    vllm = opened()
    vllm.serve(request(PROMPT[:WHOLE]))
    vllm.wipe()

    assert vllm.serve(request(PROMPT[:WHOLE])).num_loaded == WHOLE - BLOCK


def test_what_vllm_has_itself_is_not_loaded_but_stored(opened: OpenVllm) -> None:
    vllm = opened()
    vllm.serve(request(PROMPT[:9]))
    vllm.wipe()
    served = vllm.serve(request(PROMPT), num_local=12)
    assert served.num_loaded == 0
    assert vllm.counted["blocks_stored"] == WHOLE // BLOCK
    vllm.wipe()

    assert vllm.serve(request(PROMPT), num_local=8).num_loaded == WHOLE - 8


def test_blocks_of_the_answer_are_stored_as_they_fill(opened: OpenVllm) -> None:
    vllm = opened()
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


def test_a_token_that_is_not_known_yet_has_no_key(opened: OpenVllm) -> None:
    vllm = opened()
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


def test_drafted_tokens_are_not_stored(opened: OpenVllm) -> None:
    vllm = opened()
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


def test_salts_and_adapters_are_kept_apart(opened: OpenVllm, tmp_path: Path) -> None:
    vllm = opened()
    one, other = adapter(tmp_path / "one", b"1"), adapter(tmp_path / "other", b"2")
    kinds: list[dict[str, Any]] = [
        {}, {"cache_salt": "a"}, {"cache_salt": "b"},
        {"lora_request": lora(one, "a")}, {"lora_request": lora(other, "b")},
    ]  # fmt: skip
    for kind in kinds:
        assert vllm.serve(request(PROMPT, **kind)).num_loaded == 0
    for kind in kinds:
        assert vllm.serve(request(PROMPT, **kind)).num_loaded == WHOLE


@pytest.mark.parametrize(
    "facts",
    [
        {"mm_features": [object()]}, {"prompt_embeds": object()}, {"resumable": True},
        {"lora_request": SimpleNamespace(lora_name="a", lora_int_id=1, lora_path="/nowhere")},
    ],
)  # fmt: skip
def test_a_prompt_that_is_more_than_tokens_is_left_alone(opened: OpenVllm, facts: dict[str, Any]) -> None:
    vllm = opened()
    for _ in range(2):
        assert vllm.serve(request(PROMPT, **facts)).num_loaded == 0
    assert "blocks_stored" not in vllm.counted


def test_a_request_that_reads_no_cache_is_stored_all_the_same(opened: OpenVllm) -> None:
    vllm = opened()
    for _ in range(2):
        assert vllm.serve(request(PROMPT, skip_reading_prefix_cache=True)).num_loaded == 0
    assert vllm.serve(request(PROMPT)).num_loaded == WHOLE


@pytest.mark.parametrize("loading", ["sync", "async"])
@pytest.mark.parametrize("nth", [1, 4, 10])
@pytest.mark.parametrize("action", [flip_byte(17), fail(OSError("unplugged"))])
def test_a_bad_block_is_computed_and_the_request_goes_on(
    opened: OpenVllm, loading: str, nth: int, action: Any
) -> None:
    vllm = opened([Fault(Operation.GET, action, nth)], loading=loading)
    vllm.serve(request(PROMPT))
    flush(vllm)
    vllm.wipe()
    served = vllm.serve(request(PROMPT), chunk=8, may_fail=True)

    assert served.num_loaded < WHOLE
    assert vllm.counted["loads_failed"] == 1
    vllm.wipe()
    flush(vllm)
    assert vllm.serve(request(PROMPT)).num_loaded == WHOLE


def test_nothing_is_stored_of_a_step_planned_before_a_failure_was_known(opened: OpenVllm) -> None:
    vllm = opened([Fault(Operation.GET, flip_byte(17), 1)], loading="sync")
    vllm.serve(request(PROMPT[:13]))
    flush(vllm)
    vllm.wipe()
    asked, block_ids = request(PROMPT), list(range(11))
    num_loaded, _ = vllm.admit(asked, block_ids)
    assert num_loaded == 12
    parts = {asked.request_id: (asked, block_ids, 12, 20)}
    behind = {asked.request_id: (asked, block_ids, 20, 42)}
    planned = [vllm.side.plan_step(scheduled(part)) for part in (parts, behind)]
    vllm.make(planned[0], parts, may_fail=True)
    vllm.make(planned[1], behind, may_fail=True)
    assert vllm.counted.get("blocks_stored", 0) == 3  # those of the first request
    vllm.step({asked.request_id: (asked, block_ids, 0, 42)})
    flush(vllm)
    vllm.wipe()

    assert vllm.serve(request(PROMPT)).num_loaded == WHOLE


def scheduled(parts: dict[str, tuple[Any, list[int], int, int]]) -> Any:
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=n, num_computed_tokens=p[2]) for n, p in parts.items()],
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[]),
        num_scheduled_tokens={name: part[3] - part[2] for name, part in parts.items()},
        scheduled_spec_decode_tokens={},
        kv_connector_block_state=SimpleNamespace(get_block_ids=lambda name: (parts[name][1],)),
    )


def test_a_load_that_stalls_is_given_up_at_its_deadline(opened: OpenVllm) -> None:
    released = Event()
    vllm = opened([Fault(Operation.GET, stall(released.wait))], loading="sync", load_deadline_s=0.05)
    vllm.serve(request(PROMPT))
    flush(vllm)
    vllm.wipe()
    try:
        assert vllm.serve(request(PROMPT), may_fail=True).num_loaded == 0
    finally:
        released.set()


def test_a_request_that_ends_while_it_is_loaded_is_given_back_to_vllm(opened: OpenVllm) -> None:
    released = Event()
    vllm = opened([Fault(Operation.GET, stall(released.wait))], loading="async")
    vllm.serve(request(PROMPT))
    flush(vllm)
    asked = request(PROMPT)
    vllm.admit(asked, list(range(11)))
    vllm.step({})
    vllm.side.ended(asked)
    try:
        assert vllm.workers[0].finished_loads({asked.request_id}, vllm.faults) == {asked.request_id}
        assert vllm.workers[0].take_failed() == set()
    finally:
        released.set()


def test_a_block_is_a_hit_only_when_every_rank_has_it(opened: OpenVllm) -> None:
    vllm = opened(ranks=3)
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


def test_mode_observe_counts_what_it_would_have_loaded(opened: OpenVllm) -> None:
    vllm = opened(mode="observe")
    for _ in range(2):
        assert vllm.serve(request(PROMPT)).num_loaded == 0
    assert vllm.counted["tokens_observed"] == WHOLE


def test_mode_off_does_nothing(opened: OpenVllm) -> None:
    vllm = opened(mode="off")
    for _ in range(2):
        assert vllm.serve(request(PROMPT)).num_loaded == 0
    assert vllm.counted == {}


def test_mode_verify_finds_a_wrong_block_and_keeps_it_out(opened: OpenVllm) -> None:
    vllm = opened(mode="verify", verify_share=1.0)
    honest = opened(store=vllm.store)
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


def test_after_a_reset_nothing_is_found(opened: OpenVllm) -> None:
    vllm = opened()
    vllm.serve(request(PROMPT))
    vllm.side.forget_all("anew")
    assert vllm.serve(request(PROMPT)).num_loaded == 0
    assert vllm.serve(request(PROMPT)).num_loaded == WHOLE


def test_a_request_asked_about_again_is_promised_the_same_and_leaves_no_lease(opened: OpenVllm) -> None:
    vllm = opened()
    vllm.serve(request(PROMPT))
    asked = request(PROMPT)
    assert {vllm.side.num_to_load(asked, 0) for _ in range(5)} == {(WHOLE, False)}
    assert vllm.side.num_to_load(asked, 8) == (WHOLE - 8, False)
    vllm.side.ended(asked)

    assert vllm.store.evict(vllm.side._tracked(request(PROMPT)).keys[0]) == WHOLE // BLOCK  # type: ignore[union-attr]


def test_a_store_that_was_closed_costs_hits_and_nothing_else(opened: OpenVllm) -> None:
    vllm = opened()
    vllm.serve(request(PROMPT))
    vllm.store.close()
    assert vllm.serve(request(PROMPT), may_fail=True).num_loaded == 0
    assert vllm.serve(request([9, *PROMPT])).num_loaded == 0


def test_a_memory_that_is_full_drops_blocks(opened: OpenVllm) -> None:
    arena = Arena(2**16)
    store = TieredStore([host_tier(arena, 2**12)], arena)
    vllm = opened(store=store)
    vllm.serve(request(PROMPT))
    assert vllm.serve(request(PROMPT)).num_loaded < WHOLE
    store.close()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("ranks", [1, 2])
def test_whatever_the_medium_does_every_block_is_right_and_nothing_is_left_held(
    opened: OpenVllm, seed: int, ranks: int
) -> None:
    random = Random(seed)
    script = [Fault(Operation.GET, moody(random)), Fault(Operation.PUT, moody(random))]
    vllm = opened(script, ranks=ranks, loading=random.choice(["sync", "async"]), load_deadline_s=2.0)
    for _ in range(15):
        prompt = PROMPT[: random.randrange(1, 43)] + [9] * random.randrange(1, 12)
        num_local = random.randrange(len(prompt)) // BLOCK * BLOCK if random.random() < 0.3 else 0
        vllm.serve(request(prompt), random.randrange(1, 30), num_local, may_fail=True)
        vllm.wipe()
        if random.random() < 0.3:
            flush(vllm)
    assert vllm.faults.take() == 0
    flush(vllm)
    assert vllm.side._requests == {}
    vllm.store.check()  # type: ignore[attr-defined]
