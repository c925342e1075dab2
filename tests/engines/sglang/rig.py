"""SGLang's own controller and host pools on a CPU, with a storage backend of ours attached."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from sglang.srt.managers.cache_controller import PrefetchAck
from sglang.srt.mem_cache.device_pool_info import (
    KVBufferLayout,
    KVBuffers,
    MambaStateBufferInfo,
    MHABufferInfo,
    MLABufferInfo,
)
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup, PoolEntry
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import ServerArgs
from transformers import LlamaConfig

LAYERS, HEADS, HEAD_DIM = 3, 2, 8
PAGE_TOKENS = 4
DEVICE_TOKENS = 16
HOST_SHARE = 40.0
_WAIT_S = 20.0


def save_model(folder: Path, seed: int = 0, **sizes: Any) -> Path:
    """Make a folder with a small configuration and weights of their own for each seed."""
    folder.mkdir(parents=True, exist_ok=True)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, architectures=["LlamaForCausalLM"], **sizes,
    )  # fmt: skip
    config.save_pretrained(folder)
    weights = torch.randn(8, generator=torch.Generator().manual_seed(seed))
    save_file({"weights": weights}, folder / "model.safetensors")
    return folder


def serve(folder: Path, replica: int | None = None, **arguments: Any) -> None:
    """Have SGLang say that this process serves a model."""
    server = ServerArgs(model_path=str(folder), device="cpu", skip_tokenizer_init=True, **arguments)
    publish(server, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=replica))


def mha_pool(layout: str = "page_first", dtype: torch.dtype = torch.bfloat16) -> MHATokenToKVPoolHost:
    """Return a real host pool for attention with heads, full of random numbers."""
    keys, values = _device_layers((HEADS, HEAD_DIM), dtype), _device_layers((HEADS, HEAD_DIM), dtype)
    buffers = KVBuffers(
        k=keys,
        v=values,
        k_data_ptrs=_addresses(keys),
        v_data_ptrs=_addresses(values),
        layout=KVBufferLayout.NHD,
    )
    info = MHABufferInfo(
        buffers=buffers, page_size=PAGE_TOKENS, head_num=HEADS, head_dim=HEAD_DIM, v_head_dim=HEAD_DIM,
        dtype=dtype, device=torch.device("cpu"),
    )  # fmt: skip
    with host_memory_budget_scope(1 << 30):
        pool = MHATokenToKVPoolHost(
            info, HOST_SHARE, 0, PAGE_TOKENS, layout, pin_memory=False,
            device_capacity_tokens=DEVICE_TOKENS, start_layer=0, end_layer=LAYERS,
        )  # fmt: skip
    pool.kv_buffer.normal_()
    return pool


def mla_pool(layout: str = "page_first", dtype: torch.dtype = torch.bfloat16) -> MLATokenToKVPoolHost:
    """Return a real host pool for latent attention, full of random numbers."""
    rows = _device_layers((1, 24), dtype)
    info = MLABufferInfo(
        buffers=rows, data_ptrs=_addresses(rows), layer_indices=tuple(range(LAYERS)), device_layer_num=LAYERS,
        page_size=PAGE_TOKENS, kv_lora_rank=16, qk_rope_head_dim=8, kv_cache_dim=24, dtype=dtype,
        device=torch.device("cpu"),
    )  # fmt: skip
    with host_memory_budget_scope(1 << 30):
        pool = MLATokenToKVPoolHost(
            info, HOST_SHARE, 0, PAGE_TOKENS, layout, pin_memory=False, device_capacity_tokens=DEVICE_TOKENS,
            start_layer=0, end_layer=LAYERS, target_layer_num=LAYERS,
        )  # fmt: skip
    pool.kv_buffer.normal_()
    return pool


def mamba_pool(states: torch.dtype, width: int = HEAD_DIM) -> MambaPoolHost:
    """Return a real host pool for states of Mamba in this dtype, full of random numbers."""
    info = MambaStateBufferInfo(
        temporal=torch.zeros(LAYERS, DEVICE_TOKENS, HEADS, width, dtype=states),
        conv=(torch.zeros(LAYERS, DEVICE_TOKENS, HEAD_DIM, 3, dtype=torch.bfloat16),),
    )
    with host_memory_budget_scope(1 << 30):
        pool = MambaPoolHost(
            info, 1.0, 0, device_capacity=DEVICE_TOKENS, pin_memory=False, layout="page_first"
        )
    pool.temporal_buffer.normal_()
    for buffer in pool.conv_buffer:
        buffer.normal_()
    return pool


def _device_layers(shape: tuple[int, int], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return tuple(torch.zeros((DEVICE_TOKENS, *shape), dtype=dtype) for _ in range(LAYERS))


def _addresses(layers: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64)


class Written(NamedTuple):
    """Pages that were backed up: their hashes, their bytes, how many tokens SGLang was told are stored."""

    hashes: list[str]
    pages: list[torch.Tensor]
    num_tokens: int


class Read(NamedTuple):
    """Pages that were prefetched: how many tokens were found, and the bytes of those that came."""

    num_found: int
    pages: list[torch.Tensor]


def key_of(prompt: Sequence[int], extra_key: str | None = None, cache_salt: str | None = None) -> RadixKey:
    """Return SGLang's key of a prompt; an adapter is part of ``extra_key``."""
    return RadixKey(array("q", prompt), extra_key, cache_salt=cache_salt)


def _entry(name: PoolName, pool: Any) -> PoolEntry:
    return PoolEntry(name, pool, None, lambda layer: layer, is_primary_index_anchor=name is PoolName.KV)


class Engine:
    """The part of SGLang that moves pages between host memory and storage, threads and all.

    What its scheduler does between a query and a transfer, finding room for what was found, is done here.
    """

    def __init__(self, pool: Any, extra: dict[str, Any], others: dict[PoolName, Any] | None = None) -> None:
        self.pool = pool
        pools = {PoolName.KV: pool, **(others or {})}
        group = HostPoolGroup([_entry(name, each) for name, each in pools.items()])
        device = SimpleNamespace(
            device="cpu", layer_num=LAYERS, register_layer_transfer_counter=lambda _: None
        )
        allocator = SimpleNamespace(get_kvcache=lambda: device)
        self.controller = HybridCacheController(
            allocator, group, PAGE_TOKENS, None, threading.Event(), storage_backend="dynamic",
            prefetch_threshold=PAGE_TOKENS, model_name="served", enable_storage_metrics=True,
            storage_backend_extra_config={
                "backend_name": "prefixd", "module_path": "engine_adapter.sglang",
                "class_name": "PrefixdHiCache", **extra,
            },
        )  # fmt: skip

    @property
    def backend(self) -> Any:
        return self.controller.storage_backend

    @property
    def store(self) -> Any:
        return self.backend._pools._store

    def write(
        self,
        key: RadixKey,
        pages: Sequence[torch.Tensor] = (),
        extra_pools: list[PoolTransfer] | None = None,
    ) -> Written:
        """Back a prompt's pages up: these, or else random numbers."""
        hashes = self.hashes(key)
        places = self.pool.alloc(len(hashes) * PAGE_TOKENS)
        for number, page in enumerate(pages):
            self.pool.set_from_flat_data_page(int(places[number * PAGE_TOKENS]), page)
        self.controller.write_storage(places, key, hashes, extra_pools=extra_pools)
        operation = self.controller.ack_backup_queue.get(timeout=_WAIT_S)
        self.store.flush(_WAIT_S)
        return Written(hashes, self.pages_at(places), operation.completed_tokens)

    def read(self, key: RadixKey, extra_pools: list[PoolTransfer] | None = None) -> Read:
        """Prefetch a prompt's pages into host memory."""
        self.controller.prefetch(SimpleNamespace(rid="request"), key, extra_pools=extra_pools)
        operation = self.controller.prefetch_hit_queue.get(timeout=_WAIT_S)
        operation.host_indices = places = self.pool.alloc(operation.storage_hit_count)
        self.controller.prefetch_buffer.put(operation)
        num_tokens = max((ack.completed_tokens or 0 for ack in self._acks()), default=0)
        return Read(operation.storage_hit_count, self.pages_at(places[:num_tokens]))

    def hashes(self, key: RadixKey) -> list[str]:
        """Return SGLang's hashes of a prompt's pages."""
        return list(get_storage_hash_str(key, page_size=PAGE_TOKENS))

    def pages_at(self, places: torch.Tensor) -> list[torch.Tensor]:
        """Return copies of the pages whose tokens lie at these places."""
        firsts = [int(place) for place in places[::PAGE_TOKENS]]
        return [self.pool.get_data_page(first, flat=True).clone() for first in firsts]

    def _acks(self) -> list[PrefetchAck]:
        acks = [self.controller.ack_prefetch_queue.get(timeout=_WAIT_S)]
        while not acks[-1].completed_req:
            acks.append(self.controller.ack_prefetch_queue.get(timeout=_WAIT_S))
        return acks

    def close(self) -> None:
        self.controller.detach_storage_backend()
