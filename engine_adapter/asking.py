"""Asks media that others write to, for those who wait for the answer."""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.interface import BlockStore


def ask_media(
    store: BlockStore, keys: Sequence[bytes], deadline_s: float, block_bytes: int | None = None
) -> None:
    """Ask for blocks, and wait ``deadline_s`` at most until lookups know what there is."""
    ends_s = store.now_s() + deadline_s
    inquiry = store.inquire(keys, ends_s, block_bytes=block_bytes)
    if inquiry is not None and not inquiry.wait(max(0.0, ends_s - store.now_s())):
        inquiry.abandon()
