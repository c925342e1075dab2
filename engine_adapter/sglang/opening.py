"""Opens the store of one rank: a server's, or tiers of the process's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from engine_adapter.opening import memory_and_disk, open_whole
from engine_adapter.serving_config import TierSetup
from engine_adapter.sglang.settings import AdapterSettings
from kvstore.arena import slot_stride
from kvstore.connect import connect
from kvstore.interface import BlockStore

MOST_ON_WAY = 16
"""Pages that a batch has on their way at a time; two batches' and as many writes' find memory."""


def open_store(settings: AdapterSettings, rank: str, page_bytes: int) -> BlockStore:
    """Return the store for pages of up to ``page_bytes``; ``rank`` names what no other process is.

    Raises ``ConfigError`` for a tier that cannot be opened or an odd address, ``AccessError`` for a token.
    """
    on_way_bytes = 3 * MOST_ON_WAY * slot_stride(page_bytes)
    if settings.store:
        return connect(settings.store, settings.token or None, memory_bytes=on_way_bytes)
    return open_whole(list(_setups(settings, rank, page_bytes)), on_way_bytes)


def _setups(settings: AdapterSettings, rank: str, page_bytes: int) -> Iterator[TierSetup]:
    folder = Path(settings.disk_path).expanduser() / rank
    return memory_and_disk(settings.host_bytes, settings.disk_bytes, folder, page_bytes)
