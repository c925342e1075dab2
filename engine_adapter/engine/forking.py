"""Several answers to one prompt, which is computed once."""

from __future__ import annotations

from backends.device import DevicePool
from engine_adapter.engine.prefix import PrefixCache
from engine_adapter.engine.request import CacheUse
from engine_adapter.engine.sequence import Sequence


def fork(prefix: PrefixCache, first: Sequence, other: Sequence, num_spare: int) -> bool:
    """Let ``other``, one more answer, go on from the end of the prompt that ``first`` has completed.

    ::

        first   [published][published][private: the prompt's end, its own answer]
                     │          │         copied
        other   [published][published][private: the prompt's end]

    Private blocks are copied: that is the last one, or all where the request leaves nothing in the cache.
    ``False``, with nothing changed, when that would leave fewer than ``num_spare`` blocks available.
    """
    blocks = _fork_blocks(prefix, first, num_spare)
    if blocks is None:
        return False
    other.blocks = blocks
    other.keys = list(first.keys)
    other.cache = first.cache
    if first.cache is not CacheUse.OFF:
        other.namespace = first.namespace
    other.times.admitted_s = first.times.admitted_s
    other.num_computed = other.num_prefill
    other.is_fork = True
    return True


def _fork_blocks(prefix: PrefixCache, first: Sequence, num_spare: int) -> list[int] | None:
    pool, blocks = prefix.pool, first.blocks[: prefix.blocks_for(first.num_prompt)]
    keys = [*first.keys, *[b""] * len(blocks)]
    shared = [block for block, key in zip(blocks, keys, strict=False) if _share(pool, block, key)]
    is_shared = frozenset(shared).__contains__
    private = [block for block in blocks if not is_shared(block)]
    copies = pool.allocate(len(private)) if prefix.can_allocate(len(private) + num_spare) else None
    if copies is None:
        pool.release(reversed(shared), is_used=False)
        return None
    copy_of = dict(zip(private, copies, strict=True))
    for block, copy in copy_of.items():
        pool.copy_block(block, copy)
    return [copy_of.get(block, block) for block in blocks]


def _share(pool: DevicePool, block: int, key: bytes) -> bool:
    """Add a reference to ``block`` if it is the published one of ``key``."""
    published = pool.acquire(key)
    if published is not None and published != block:
        pool.release([published], is_used=False)
    return published == block
