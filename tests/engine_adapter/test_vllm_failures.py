"""The vLLM connector when media fail: what cannot be loaded is computed, and nothing wrong is kept."""

from __future__ import annotations

from random import Random
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from backends.faulty import Fault, Operation, fail, flip_byte, stall
from kvstore.arena import Arena
from kvstore.store import TieredStore
from tests.engine_adapter.rig import host_tier, moody
from tests.engine_adapter.vllm_rig import BLOCK, PROMPT, WHOLE, OpenVllm, Vllm, request


def flush(vllm: Vllm) -> None:
    assert vllm.store.flush(10)


@pytest.mark.parametrize("loading", ["sync", "async"])
@pytest.mark.parametrize("nth", [1, 4, 10])
@pytest.mark.parametrize("action", [flip_byte(17), fail(OSError("unplugged"))])
def test_a_bad_block_is_computed_and_the_request_goes_on(
    open_vllm: OpenVllm, loading: str, nth: int, action: Any
) -> None:
    vllm = open_vllm([Fault(Operation.GET, action, nth)], loading=loading)
    vllm.serve(request(PROMPT))
    flush(vllm)
    vllm.wipe()
    served = vllm.serve(request(PROMPT), chunk=8, may_fail=True)

    assert served.num_loaded < WHOLE
    assert vllm.counted["loads_failed"] == 1
    vllm.wipe()
    flush(vllm)
    assert vllm.serve(request(PROMPT)).num_loaded == WHOLE


def test_nothing_is_stored_of_a_step_whose_load_has_failed(open_vllm: OpenVllm) -> None:
    """Even where vLLM asks for failures before it has blocks stored, as it does with drafted tokens."""
    vllm = open_vllm([Fault(Operation.GET, flip_byte(17), 1)], loading="sync")
    vllm.serve(request(PROMPT[:13]))
    flush(vllm)
    vllm.wipe()
    asked, block_ids = request(PROMPT), list(range(11))
    assert vllm.admit(asked, block_ids) == (12, False)
    parts = {asked.request_id: (asked, block_ids, 12, 42)}
    planned = vllm.side.plan_step(scheduled(parts))
    (worker,) = vllm.workers
    worker.start_loads(planned, vllm.faults)
    assert worker.take_failed() != set()
    worker.store_blocks(planned)
    assert "blocks_stored" not in worker.take_told(0).counts

    again = {asked.request_id: (asked, block_ids, 0, 42)}
    worker.store_blocks(vllm.side.plan_step(scheduled(again)))
    assert worker.take_told(0).counts["blocks_stored"] > 0


def test_a_load_that_fails_meanwhile_keeps_nothing_from_being_stored(open_vllm: OpenVllm) -> None:
    vllm = open_vllm([Fault(Operation.GET, fail(OSError("unplugged")), 1)], loading="async")
    vllm.serve(request(PROMPT))
    flush(vllm)
    asked, other, table = request(PROMPT), request([9, *PROMPT]), list(range(20, 31))
    assert vllm.admit(asked, list(range(11))) == (WHOLE, True)
    vllm.admit(other, table)
    while "loads_failed" not in vllm.counted:
        vllm.step({}, may_fail=True)
    planned = vllm.side.plan_step(scheduled({other.request_id: (other, table, 0, 43)}))
    vllm.make(planned, {}, may_fail=True)
    assert vllm.counted["blocks_stored"] == 2 * WHOLE // BLOCK


@pytest.mark.parametrize("loading", ["sync", "async"])
def test_a_load_that_cannot_even_begin_is_over_and_has_failed(
    open_vllm: OpenVllm, monkeypatch: pytest.MonkeyPatch, loading: str
) -> None:
    vllm = open_vllm(loading=loading)
    vllm.serve(request(PROMPT))
    asked, table = request(PROMPT), list(range(11))
    assert vllm.admit(asked, table) == (WHOLE, loading == "async")
    monkeypatch.setattr(vllm.store, "lookup", fail(OSError("no memory")))
    parts = {asked.request_id: (asked, table, WHOLE, 42)} if loading == "sync" else {}
    made = vllm.step(parts, may_fail=True)
    assert made.failed == set(range(10))
    assert made.finished == ({asked.request_id} if loading == "async" else set())
    assert (vllm.counted["loads_failed"], vllm.counted["blocks_not_loaded"]) == (1, 10)


def scheduled(parts: dict[str, tuple[Any, list[int], int, int]]) -> Any:
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=n, num_computed_tokens=p[2]) for n, p in parts.items()],
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[]),
        num_scheduled_tokens={name: part[3] - part[2] for name, part in parts.items()},
        scheduled_spec_decode_tokens={},
        kv_connector_block_state=SimpleNamespace(get_block_ids=lambda name: (parts[name][1],)),
    )


def test_a_load_that_stalls_is_given_up_at_its_deadline(open_vllm: OpenVllm) -> None:
    released = Event()
    vllm = open_vllm([Fault(Operation.GET, stall(released.wait))], loading="sync", load_deadline_s=0.05)
    vllm.serve(request(PROMPT))
    flush(vllm)
    vllm.wipe()
    try:
        assert vllm.serve(request(PROMPT), may_fail=True).num_loaded == 0
    finally:
        released.set()


def test_a_request_that_ends_while_it_is_loaded_is_given_back_to_vllm(open_vllm: OpenVllm) -> None:
    released = Event()
    vllm = open_vllm([Fault(Operation.GET, stall(released.wait))], loading="async")
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


def test_a_store_that_was_closed_costs_hits_and_nothing_else(open_vllm: OpenVllm) -> None:
    vllm = open_vllm()
    vllm.serve(request(PROMPT))
    vllm.store.close()
    assert vllm.serve(request(PROMPT), may_fail=True).num_loaded == 0
    assert vllm.serve(request([9, *PROMPT])).num_loaded == 0


def test_a_block_that_cannot_be_read_gives_its_memory_back(
    open_vllm: OpenVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm = open_vllm()
    with monkeypatch.context() as broken:
        broken.setattr(vllm.workers[0].pool, "read", raising)
        vllm.serve(request(PROMPT))
    assert vllm.counted["faults"] == 1
    vllm.serve(request(PROMPT))
    assert vllm.counted["blocks_stored"] == WHOLE // BLOCK


def raising(*_arguments: Any) -> None:
    raise OSError("gone")


def test_a_memory_that_is_full_drops_blocks(open_vllm: OpenVllm) -> None:
    arena = Arena(2**16)
    store = TieredStore([host_tier(arena, 2**12)], arena)
    vllm = open_vllm(store=store)
    vllm.serve(request(PROMPT))
    assert vllm.serve(request(PROMPT)).num_loaded < WHOLE
    store.close()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("ranks", [1, 2])
def test_whatever_the_medium_does_every_block_is_right_and_nothing_is_left_held(
    open_vllm: OpenVllm, seed: int, ranks: int
) -> None:
    random = Random(seed)
    script = [Fault(Operation.GET, moody(random)), Fault(Operation.PUT, moody(random))]
    vllm = open_vllm(script, ranks=ranks, loading=random.choice(["sync", "async"]), load_deadline_s=2.0)
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
