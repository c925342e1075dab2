"""A store in memory of this process."""

from __future__ import annotations

from backends.host import HostBackend
from kvstore.arena import Arena, slot_stride
from kvstore.store import TieredStore
from kvstore.tier import TierConfig, TierSpec
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU

_HOST_BYTES = 1 << 30
_STAGING_BLOCKS = 64


def open_here(block_bytes: int, host_bytes: int = _HOST_BYTES) -> TieredStore:
    """Return a store whose only tier is memory of this process, for blocks of ``block_bytes``."""
    arena = Arena(host_bytes + _STAGING_BLOCKS * slot_stride(block_bytes))
    host = TierConfig("host", host_bytes)
    return TieredStore([TierSpec(host, HostBackend(arena), LeafFirstLRU(), whole_blocks_that_fit)], arena)
