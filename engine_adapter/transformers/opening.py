"""A store in memory of this process."""

from __future__ import annotations

from engine_adapter.opening import HOST, open_whole
from engine_adapter.serving_config import TierSetup
from kvstore.arena import slot_stride
from kvstore.store import TieredStore

_HOST_BYTES = 1 << 30
_STAGING_BLOCKS = 64


def open_here(block_bytes: int) -> TieredStore:
    """Return a store whose only tier is memory of this process, for blocks of ``block_bytes``."""
    host = TierSetup(HOST, _HOST_BYTES, "lru", "through")
    return open_whole([host], _STAGING_BLOCKS * slot_stride(block_bytes))
