"""The storage interface itself: its shape, ranks, calls at odd times and with odd arguments."""

from __future__ import annotations

import argparse
import inspect
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
from sglang.srt.server_args import ServerArgs

from engine_adapter.sglang import PrefixdHiCache
from engine_adapter.sglang.identity import scoped
from engine_adapter.sglang.served import ARGUMENTS
from engine_adapter.sidecar import Sidecar
from kvstore.errors import ConfigError
from tests.engines.sglang.rig import PAGE_TOKENS, mamba_pool, mha_pool, mla_pool, serve
from tests.eventually import eventually

KEYS = [f"{number:064x}" for number in range(1, 4)]


def config(cache: Path, extra: dict[str, Any] | None = None, **facts: Any) -> HiCacheStorageConfig:
    given = {
        "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1,
        "is_mla_model": False, "enable_storage_metrics": False, "is_page_first_layout": True,
        "model_name": "served",
    }  # fmt: skip
    settings = {"interface_v1": 1, "host_bytes": 1 << 20, "cache_path": str(cache)} | (extra or {})
    return HiCacheStorageConfig(**(given | facts), extra_config=settings)


@pytest.fixture
def cache(tmp_path: Path, model: Path) -> Path:
    """Return a folder for digests; the process serves a model."""
    return tmp_path / "cache"


def attached(
    storage_config: HiCacheStorageConfig, pool: Any = None, others: dict[PoolName, Any] | None = None
) -> Any:
    backend = PrefixdHiCache(storage_config)
    backend.register_mem_pool_host(pool or mha_pool())
    for name, other in (others or {}).items():
        backend.register_mem_host_pool_v2(other, name)
    backend.on_host_pools_registered()
    return backend


def test_every_method_has_the_arguments_that_sglang_gives() -> None:
    ours = {name for name, _ in inspect.getmembers(PrefixdHiCache, inspect.isfunction)}
    theirs = dict(inspect.getmembers(HiCacheStorage, inspect.isfunction))
    assert PrefixdHiCache.__abstractmethods__ == set()
    for name in theirs.keys() & ours - {"__init__"}:
        wanted = list(inspect.signature(theirs[name]).parameters)
        assert list(inspect.signature(getattr(PrefixdHiCache, name)).parameters) == wanted, name


def test_the_documented_command_is_one(cache: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "sglang.md").read_text()
    command = page.partition("-m sglang.launch_server ")[2].partition("```")[0].replace("\\\n", " ")
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    given = parser.parse_args(shlex.split(command))
    assert given.hicache_storage_backend == "dynamic"
    extra, *_, passes_prefix = HybridCacheController.parse_storage_backend_extra_config(
        given.hicache_storage_backend_extra_config
    )
    assert passes_prefix
    made = StorageBackendFactory.create_backend("dynamic", config(cache, extra), mha_pool())
    assert isinstance(made, PrefixdHiCache)


def test_pages_given_as_tensors(cache: Path) -> None:
    backend = attached(config(cache, {"interface_v1": 0}))
    page = backend.mem_pool_host.get_data_page(0)
    assert backend.set(KEYS[0], page)
    assert backend.set(KEYS[1], target_location=page)
    assert [backend.exists(key) for key in KEYS] == [True, True, False]
    target = backend.mem_pool_host.get_dummy_flat_data_page()
    assert backend.get(KEYS[0], target) is target
    assert torch.equal(target, page)
    assert backend.batch_get(KEYS, [torch.zeros_like(page) for _ in KEYS])[2] is None
    assert backend.get(KEYS[2], target) is None
    strided = torch.stack([page, page + 1], dim=1)[:, 1]
    assert backend.set(KEYS[2], strided)
    assert torch.equal(backend.get(KEYS[2], target), strided)
    backend.close()


def test_a_tensor_of_another_size_is_refused_and_left_alone(cache: Path) -> None:
    backend = attached(config(cache, {"interface_v1": 0}))
    page = backend.mem_pool_host.get_data_page(0)
    backend.set(KEYS[0], page)
    short, strided = torch.zeros(8), torch.zeros(len(page), 2)[:, 0]
    assert backend.get(KEYS[0], short) is None
    assert backend.get(KEYS[0], strided) is None
    assert backend.get(KEYS[0]) is None
    assert not backend.set(KEYS[1], short)
    assert not backend.set(KEYS[1])
    assert not short.any()
    backend.close()


def test_calls_of_the_other_interface_do_nothing(cache: Path) -> None:
    by_address = attached(config(cache))
    page = by_address.mem_pool_host.get_data_page(0)
    assert not by_address.set(KEYS[0], page)
    flat = attached(config(cache, {"interface_v1": 0}))
    assert flat.batch_set_v1(KEYS[:1], torch.arange(PAGE_TOKENS)) == [False]
    assert flat.batch_get_v1(KEYS[:1], torch.arange(PAGE_TOKENS)) == [False]
    by_address.close()
    flat.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_before_it_is_attached_and_after_it_is_closed_everything_misses(cache: Path, when: str) -> None:
    backend = PrefixdHiCache(config(cache))
    if when == "after":
        backend = attached(config(cache))
        backend.batch_set_v1(KEYS, torch.arange(3 * PAGE_TOKENS))
        backend.close()
        backend.close()
    transfer = PoolTransfer(PoolName.MAMBA, torch.arange(3), keys=KEYS)
    assert backend.batch_exists(KEYS) == 0
    assert backend.batch_get_v1(KEYS, torch.arange(3 * PAGE_TOKENS)) == [False] * 3
    assert backend.batch_set_v1(KEYS, torch.arange(3 * PAGE_TOKENS)) == [False] * 3
    assert backend.batch_get(KEYS, [None] * 3) == [None] * 3
    assert backend.batch_set(KEYS, [None] * 3) is False
    assert backend.batch_exists_v2(KEYS, [transfer]).kv_hit_pages == 0
    assert backend.batch_get_v2([transfer]) == {PoolName.MAMBA: [False] * 3}
    assert backend.batch_set_v2([transfer]) == {PoolName.MAMBA: [False] * 3}
    backend.clear()
    assert backend.get_stats() is None


def test_places_that_are_too_few_are_refused(cache: Path) -> None:
    backend = attached(config(cache))
    assert backend.batch_set_v1(KEYS, torch.arange(2 * PAGE_TOKENS)) == [False] * 3
    assert backend.batch_exists(KEYS) == 0
    assert backend.batch_exists([]) == 0
    assert backend.batch_get_v1([], torch.arange(0)) == []
    backend.close()


def test_pages_are_stored_after_those_before_them(cache: Path) -> None:
    backend = attached(config(cache))
    places = torch.arange(PAGE_TOKENS)
    before = HiCacheStorageExtraInfo(prefix_keys=KEYS[:2])
    assert backend.batch_set_v1(KEYS[2:], places, before) == [True]
    assert backend.batch_exists(KEYS[2:], before) == 1
    parent, own = scoped(backend._pools.kv._kind.namespace, KEYS[1:])
    (record,) = backend._pools._store.lookup([own]).records
    assert (record.parent, record.first_token) == (parent, 2 * PAGE_TOKENS)
    backend.close()


def test_ranks_have_pages_of_their_own(cache: Path, address: str) -> None:
    ranks = [attached(config(cache, {"store": address}, tp_rank=rank, tp_size=2)) for rank in (0, 1)]
    places = torch.arange(3 * PAGE_TOKENS)
    assert all(ranks[0].batch_set_v1(KEYS, places))
    assert [rank.batch_exists(KEYS) for rank in ranks] == [3, 0]
    alone = attached(config(cache, {"store": address}))
    assert alone.batch_exists(KEYS) == 0


def test_ranks_that_hold_the_same_share_what_one_of_them_stores(cache: Path, address: str) -> None:
    pools = [mla_pool(), mla_pool()]
    ranks = [
        attached(config(cache, {"store": address}, tp_rank=rank, tp_size=2, is_mla_model=True), pool)
        for rank, pool in enumerate(pools)
    ]
    places = torch.arange(3 * PAGE_TOKENS)
    assert all(ranks[0].batch_set_v1(KEYS, places))
    eventually(lambda: ranks[1].batch_exists(KEYS) == 3)
    assert ranks[1].batch_get_v1(KEYS, places) == [True] * 3
    assert torch.equal(pools[0].kv_buffer[places], pools[1].kv_buffer[places])


def test_ranks_share_a_draft_model_s_latent_pages_too(cache: Path, address: str) -> None:
    drafts, places = [mla_pool(), mla_pool()], torch.arange(3 * PAGE_TOKENS)
    ranks = [
        attached(config(cache, {"store": address}, tp_rank=rank, tp_size=2, is_mla_model=True), mla_pool())
        for rank in (0, 1)
    ]
    for rank, draft in zip(ranks, drafts, strict=True):
        rank.register_mem_host_pool_v2(draft, PoolName.DRAFT)
    transfer = PoolTransfer(PoolName.DRAFT, places, keys=KEYS)
    # SGLang writes both pools on the first rank alone.
    assert all(ranks[0].batch_set_v2([transfer])[PoolName.DRAFT])
    assert all(ranks[0].batch_set_v1(KEYS, places))
    eventually(lambda: ranks[1].batch_exists_v2(KEYS, [transfer]).kv_hit_pages == 3)
    assert ranks[1].batch_get_v2([transfer]) == {PoolName.DRAFT: [True] * 3}
    assert torch.equal(drafts[0].kv_buffer[places], drafts[1].kv_buffer[places])


def test_states_of_another_dtype_are_not_found(cache: Path, address: str) -> None:
    transfer = PoolTransfer(PoolName.MAMBA, torch.arange(3), keys=KEYS)

    def states(dtype: torch.dtype) -> tuple[Any, Any]:
        pool = mamba_pool(dtype)
        return attached(config(cache, {"store": address}), others={PoolName.MAMBA: pool}), pool

    dtypes = torch.float16, torch.bfloat16, torch.float16
    (first, stored), (other, unlike), (same, loaded) = map(states, dtypes)
    assert first.batch_set_v2([transfer]) == {PoolName.MAMBA: [True] * 3}
    eventually(lambda: same.batch_get_v2([transfer]) == {PoolName.MAMBA: [True] * 3})
    assert torch.equal(loaded.get_data_page(2), stored.get_data_page(2))
    before = unlike.get_data_page(2).clone()
    assert other.batch_get_v2([transfer]) == {PoolName.MAMBA: [False] * 3}
    assert torch.equal(unlike.get_data_page(2), before)


def test_states_much_longer_than_pages_find_memory_on_their_way(
    cache: Path, server: Sidecar, tmp_path: Path
) -> None:
    disk = {"host_bytes": 0, "disk_bytes": 1 << 26, "disk_path": str(tmp_path / "pages")}
    transfer = PoolTransfer(PoolName.MAMBA, torch.arange(3), keys=KEYS)
    for where in (disk, {"store": f"unix://{tmp_path / 'prefixd.sock'}"}):
        pool = mamba_pool(torch.float32, width=1 << 14)
        backend = attached(config(cache, where), others={PoolName.MAMBA: pool})
        assert backend.batch_set_v2([transfer]) == {PoolName.MAMBA: [True] * 3}
        eventually(lambda: backend.batch_get_v2([transfer]) == {PoolName.MAMBA: [True] * 3})  # noqa: B023 - at once
        backend.close()


def test_a_pool_that_comes_later_is_taken_in_if_there_is_memory_for_it(cache: Path) -> None:
    backend, draft = attached(config(cache)), mha_pool("layer_first")
    backend.register_mem_host_pool_v2(draft, PoolName.DRAFT)
    backend.register_mem_host_pool_v2(mamba_pool(torch.float32, width=1 << 14), PoolName.MAMBA)
    places = torch.arange(3 * PAGE_TOKENS)
    assert all(backend.batch_set_v2([PoolTransfer(PoolName.DRAFT, places, keys=KEYS)])[PoolName.DRAFT])
    assert backend.faults.num == 1
    late = PoolTransfer(PoolName.MAMBA, torch.arange(3), keys=KEYS)
    assert backend.batch_set_v2([late]) == {PoolName.MAMBA: [False] * 3}
    backend.close()


def test_servers_side_by_side_have_folders_of_their_own(cache: Path, model: Path, tmp_path: Path) -> None:
    disk = {"host_bytes": 0, "disk_bytes": 1 << 20, "disk_path": str(tmp_path / "pages")}
    replicas = []
    for replica in (0, 1):
        serve(model, replica, dp_size=2)
        replicas.append(attached(config(cache, disk)))
    for each in replicas:
        each.close()


def test_every_dtype_that_can_be_given_is_told() -> None:
    given = set(ServerArgs.__struct_fields__)
    assert set(ARGUMENTS) <= given
    of_other_things = {
        "deepep_dispatcher_output_dtype", "_speculative_draft_quantization_explicitly_set",
    }  # fmt: skip
    assert {name for name in given if "dtype" in name or "quant" in name} - of_other_things <= set(ARGUMENTS)


def test_what_could_never_hit_is_refused_at_the_start(cache: Path) -> None:
    with pytest.raises(ConfigError, match="store: one rank stores what all of them load"):
        PrefixdHiCache(config(cache, tp_size=2, is_mla_model=True))
    with pytest.raises(ConfigError, match="hots_bytes: is no setting"):
        PrefixdHiCache(config(cache, {"hots_bytes": 1}))


def test_weights_that_cannot_be_read_must_be_named(cache: Path, model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"weights: .*say what they are"):
        attached(config(cache))
    attached(config(cache, {"weights": "step 1000"})).close()
