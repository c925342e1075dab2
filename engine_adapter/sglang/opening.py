"""Opens the store of one rank: a server's, or tiers of the process's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from engine_adapter.opening import memory_and_disk, open_whole
from engine_adapter.serving_config import TierSetup
from engine_adapter.sglang.settings import AdapterSettings
from kvstore.arena import slot_stride
from kvstore.connect import connect
from kvstore.interface import BlockStore

MOST_ON_WAY = 16
_MOST_BYTES_ON_WAY = 128 << 20
_BATCHES = 3
"""Two batches that are loaded and as much that is written find memory."""


def most_on_way(page_bytes: int) -> int:
    """Return how many pages a batch has on their way at a time."""
    return max(1, min(MOST_ON_WAY, _MOST_BYTES_ON_WAY // slot_stride(page_bytes)))


def on_way_bytes(page_bytes: int) -> int:
    """Return the memory that pages of a pool take on their way."""
    return _BATCHES * most_on_way(page_bytes) * slot_stride(page_bytes)


def staging_bytes(page_bytes: Sequence[int]) -> int:
    """Return the memory that pages of several pools take on their way."""
    return sum(map(on_way_bytes, page_bytes))


def open_store(settings: AdapterSettings, rank: str, page_bytes: Sequence[int]) -> BlockStore:
    """Return the store for pools with pages of these lengths; ``rank`` names what no other process is.

    Raises ``ConfigError`` for a tier that cannot be opened or an odd address, ``AccessError`` for a token.
    """
    memory_bytes = staging_bytes(page_bytes)
    if settings.store:
        return connect(settings.store, settings.token or None, memory_bytes=memory_bytes)
    return open_whole(list(_setups(settings, rank, max(page_bytes))), memory_bytes)


def _setups(settings: AdapterSettings, rank: str, page_bytes: int) -> Iterator[TierSetup]:
    folder = Path(settings.disk_path).expanduser() / rank
    return memory_and_disk(settings.host_bytes, settings.disk_bytes, folder, page_bytes)
