"""Pages go through SGLang's own controller, host pools and threads, and come back the same or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

from engine_adapter.sidecar import Sidecar
from tests.engines.sglang.conftest import Begin
from tests.engines.sglang.rig import PAGE_TOKENS, key_of, mha_pool, mla_pool, save_model, serve

PROMPT = range(24)
POOLS = {"heads": mha_pool, "latent": mla_pool}


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("interface_v1", [0, 1])
@pytest.mark.parametrize(
    ("kind", "layout"),
    [("heads", layout) for layout in ("layer_first", "page_first", "page_first_direct", "page_head")]
    + [("latent", layout) for layout in ("layer_first", "page_first")],
)
def test_pages_come_back_as_they_were(begin: Begin, kind: str, layout: str, interface_v1: int) -> None:
    engine = begin(POOLS[kind](layout), interface_v1=interface_v1)
    written = engine.write(key_of(PROMPT))
    read = engine.read(key_of([*PROMPT, 1, 2, 3]))
    assert (written.num_tokens, read.num_found) == (24, 24)
    assert same(read.pages, written.pages)
    assert engine.backend.faults.num == 0


def test_more_pages_than_are_on_their_way_at_a_time_come_in_order(begin: Begin) -> None:
    engine = begin()
    written = engine.write(key_of(range(160)))
    assert same(engine.read(key_of(range(160))).pages, written.pages)


def test_a_prompt_that_goes_another_way_finds_what_both_begin_with(begin: Begin) -> None:
    engine = begin()
    written = engine.write(key_of(PROMPT))
    read = engine.read(key_of([*range(10), *range(30, 50)]))
    assert read.num_found == 8
    assert same(read.pages, written.pages[:2])


def test_another_salt_or_adapter_finds_nothing(begin: Begin) -> None:
    engine = begin()
    written = engine.write(key_of(PROMPT, "adapter", "salt"))
    assert engine.read(key_of(PROMPT, "adapter", "other")).num_found == 0
    assert engine.read(key_of(PROMPT, "other", "salt")).num_found == 0
    assert engine.read(key_of(PROMPT)).num_found == 0
    assert same(engine.read(key_of(PROMPT, "adapter", "salt")).pages, written.pages)


def test_another_process_finds_them_through_a_server(begin: Begin, address: str) -> None:
    written = begin(store=address).write(key_of(PROMPT))
    assert same(begin(store=address).read(key_of(PROMPT)).pages, written.pages)


def test_other_weights_under_the_same_name_find_nothing(begin: Begin, address: str, tmp_path: Path) -> None:
    begin(store=address).write(key_of(PROMPT))
    serve(save_model(tmp_path / "elsewhere", seed=1))
    assert begin(store=address).read(key_of(PROMPT)).num_found == 0
    serve(save_model(tmp_path / "again"))
    assert begin(store=address).read(key_of(PROMPT)).num_found == 24


@pytest.mark.parametrize(
    "other",
    [
        {"pool": lambda: mha_pool(dtype=torch.float16)},
        {"pool": lambda: mha_pool("page_first_direct")},
        {"pool": mla_pool},
        {"interface_v1": 0},
        {"salt": "of another tenant"},
        {"weights": "others, by name"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_dtype_layout_order_or_salt_finds_nothing(
    begin: Begin, address: str, other: dict[str, Any]
) -> None:
    begin(store=address).write(key_of(PROMPT))
    changed = {name: value() if name == "pool" else value for name, value in other.items()}
    assert begin(store=address, **changed).read(key_of(PROMPT)).num_found == 0


def test_other_rope_scaling_finds_nothing(begin: Begin, address: str, tmp_path: Path) -> None:
    begin(store=address).write(key_of(PROMPT))
    scaled = {"rope_theta": 1e6, "rope_type": "default"}
    serve(save_model(tmp_path / "scaled", rope_parameters=scaled))
    assert begin(store=address).read(key_of(PROMPT)).num_found == 0


def test_a_restart_finds_what_the_disk_keeps_and_a_flipped_byte_is_a_miss(
    begin: Begin, tmp_path: Path
) -> None:
    tiers = {"host_bytes": 0, "disk_bytes": 1 << 24, "disk_path": str(tmp_path / "pages")}
    first = begin(**tiers)
    written = first.write(key_of(PROMPT))
    first.close()
    second = begin(**tiers)
    assert same(second.read(key_of(PROMPT)).pages, written.pages)
    second.close()
    flip_a_byte_of_each(tmp_path / "pages", written.pages[2])
    third = begin(**tiers)
    read = third.read(key_of(PROMPT))
    assert read.num_found == 24
    assert same(read.pages, written.pages[:2])
    assert third.backend.counts.all()["pages_not_loaded"] > 0


def flip_a_byte_of_each(folder: Path, page: torch.Tensor) -> None:
    """Change a stored page somewhere in its middle, wherever it lies."""
    middle = bytes(page.view(torch.uint8).numpy()[100:140])
    found = [(path, path.read_bytes()) for path in folder.rglob("*") if path.is_file()]
    places = [(path, data) for path, data in found if middle in data]
    assert places
    for path, data in places:
        at = data.index(middle)
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def test_observe_stores_and_counts_but_gives_nothing(begin: Begin, address: str) -> None:
    engine = begin(store=address, mode="observe")
    written = engine.write(key_of(PROMPT))
    assert written.num_tokens == 24
    assert engine.read(key_of(PROMPT)).num_found == 0
    assert engine.backend.counts.all()["pages_found"] == 6
    assert same(begin(store=address).read(key_of(PROMPT)).pages, written.pages)


def test_off_does_nothing_and_does_not_trouble_sglang(begin: Begin, server: Sidecar, address: str) -> None:
    engine = begin(store=address, mode="off")
    assert engine.write(key_of(PROMPT)).num_tokens == 24
    assert engine.read(key_of(PROMPT)).num_found == 0
    assert server.store.peek([bytes(16)]) == (None,)
    assert sum(engine.backend.counts.all().values()) == 0


def test_verify_has_prompts_computed_again_and_keeps_out_what_differs(begin: Begin) -> None:
    engine = begin(mode="verify", verify_share=1.0)
    written = engine.write(key_of(PROMPT))
    assert engine.read(key_of(PROMPT)).num_found == 0
    rounded = [page + 0.001 * page for page in written.pages]
    engine.write(key_of(PROMPT), rounded)
    counts = engine.backend.counts.all()
    assert (counts["pages_compared"], counts["pages_wrong"]) == (6, 0)
    assert engine.read(key_of(PROMPT)).num_found == 0
    engine.write(key_of(PROMPT), [*written.pages[:3], *written.pages[:3]])
    # Pages that were computed on a wrong one go with it.
    counts = engine.backend.counts.all()
    assert (counts["pages_compared"], counts["pages_wrong"]) == (10, 1)
    assert engine.backend.batch_exists(written.hashes[3:]) == 0


def test_a_server_that_is_gone_is_a_miss_and_back_a_hit(begin: Begin, server: Sidecar, address: str) -> None:
    engine = begin(store=address)
    engine.write(key_of(PROMPT))
    server.close()
    assert engine.read(key_of(PROMPT)).num_found == 0
    assert engine.write(key_of(range(50, 62))).num_tokens == 0
    assert engine.backend.faults.num == 0


def test_a_fault_is_a_miss_and_the_threads_live_on(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = begin()
    written = engine.write(key_of(PROMPT))
    with monkeypatch.context() as patch:
        patch.setattr(engine.pool, "get_page_buffer_meta", lambda _: 1 / 0)
        assert engine.write(key_of(range(40, 60))).num_tokens == 0
        read = engine.read(key_of(PROMPT))
        assert (read.num_found, read.pages) == (24, [])
    assert engine.backend.faults.num == 2
    assert same(engine.read(key_of(PROMPT)).pages, written.pages)


def test_cleared_storage_finds_nothing_and_takes_pages_again(begin: Begin) -> None:
    engine = begin()
    engine.write(key_of(PROMPT))
    assert engine.controller.clear_storage_backend()
    assert engine.read(key_of(PROMPT)).num_found == 0
    written = engine.write(key_of(PROMPT))
    assert same(engine.read(key_of(PROMPT)).pages, written.pages)


def test_sglang_is_told_what_moved(begin: Begin) -> None:
    engine = begin()
    engine.write(key_of(PROMPT))
    engine.read(key_of(PROMPT))
    moved = engine.backend.get_stats()
    assert (moved.prefetch_pgs, moved.backup_pgs) == ([6], [6])
    assert min(moved.prefetch_bandwidth + moved.backup_bandwidth) > 0
    assert engine.backend.get_stats().prefetch_pgs == []


def test_pages_of_a_draft_model_s_pool_go_with_them(begin: Begin) -> None:
    draft = mha_pool("layer_first")
    engine = begin(others={PoolName.DRAFT: draft})
    places = draft.alloc(len(PROMPT))
    given = [PoolTransfer(PoolName.DRAFT, host_indices=places)]
    written = engine.write(key_of(PROMPT), extra_pools=with_keys(given, engine, PROMPT))
    into = draft.alloc(len(PROMPT))
    wanted = [PoolTransfer(PoolName.DRAFT, host_indices=into)]
    read = engine.read(key_of(PROMPT), extra_pools=with_keys(wanted, engine, PROMPT))
    assert same(read.pages, written.pages)
    for start in range(0, len(PROMPT), PAGE_TOKENS):
        assert torch.equal(draft.get_data_page(int(into[start])), draft.get_data_page(int(places[start])))


def test_a_prompt_is_found_as_far_as_all_its_pools_have_it(begin: Begin) -> None:
    state = mha_pool("layer_first")
    engine = begin(others={PoolName.SWA: state})
    backend = engine.backend
    hashes = engine.write(key_of(PROMPT)).hashes
    last_two = PoolTransfer(
        PoolName.SWA, state.alloc(2 * PAGE_TOKENS), keys=hashes[2:4], hit_policy=PoolHitPolicy.TRAILING_PAGES
    )
    assert backend.batch_exists_v2(hashes, [last_two]).kv_hit_pages == 0
    assert backend.batch_set_v2([last_two]) == {PoolName.SWA: [True, True]}
    found = backend.batch_exists_v2(hashes, [last_two])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (4, [4])
    assert found.extra_pool_hit_pages == {PoolName.KV: 6, PoolName.SWA: 4}


def with_keys(transfers: list[PoolTransfer], engine: Any, prompt: range) -> list[PoolTransfer]:
    hashes = engine.hashes(key_of(prompt))
    for transfer in transfers:
        transfer.keys = hashes
    return transfers
