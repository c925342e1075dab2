"""What the announcer collects, as vLLM publishes it."""

from __future__ import annotations

from vllm.distributed.kv_events import (
    MEDIUM_CPU,
    MEDIUM_STORAGE,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
)
from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash

from engine_adapter.vllm.announcing import Event, Removed, Stored


def kv_event(event: Event, block_tokens: int, *, is_shared: bool) -> KVCacheEvent:
    """Return an event of vLLM; blocks in another process's store are in its ``STORAGE``."""
    medium = MEDIUM_STORAGE if is_shared else MEDIUM_CPU
    if isinstance(event, Stored):
        parent = None if event.parent is None else maybe_convert_block_hash(BlockHash(event.parent))
        name, number = event.lora or (None, None)
        return BlockStored(
            block_hashes=[maybe_convert_block_hash(BlockHash(event.hash))],
            parent_block_hash=parent,
            token_ids=list(event.tokens),
            block_size=block_tokens,
            lora_id=number,
            medium=medium,
            lora_name=name,
        )
    if isinstance(event, Removed):
        return BlockRemoved([maybe_convert_block_hash(BlockHash(event.hash))], medium)
    return AllBlocksCleared()
