"""Loading the head of a prompt, all of it at once."""

from __future__ import annotations

from collections.abc import Sequence

from engine_adapter.asking import ask_media
from kvstore.errors import LeaseExpiredError, StoreClosedError
from kvstore.interface import BlockStore
from kvstore.leases import Hit
from kvstore.loading import LoadedBlock, Ticket


def head_of(
    store: BlockStore, keys: Sequence[bytes], ttl_s: float | None, ends_s: float, block_bytes: int
) -> list[LoadedBlock]:
    """Return the blocks that a prompt begins with, up to the first one that is not there.

    Blocks until they are here, at most until ``ends_s`` on the store's clock. They are the caller's to
    release.
    """
    ask_media(store, keys, ends_s - store.now_s(), block_bytes)
    hit = store.lookup(keys, ttl_s=ttl_s)
    try:
        return _arrived(_tickets(store, hit, ends_s), store, ends_s, block_bytes)
    finally:
        hit.release()


def _tickets(store: BlockStore, hit: Hit, ends_s: float) -> list[Ticket]:
    tickets = list[Ticket]()
    for index, tier in enumerate(hit.tiers):
        if tier is None:
            break
        try:
            tickets.append(store.load(hit, index, ends_s))
        except (LeaseExpiredError, StoreClosedError):
            break
    return tickets


def _arrived(
    tickets: Sequence[Ticket], store: BlockStore, ends_s: float, block_bytes: int
) -> list[LoadedBlock]:
    blocks = list[LoadedBlock]()
    for number, ticket in enumerate(tickets):
        is_here = ticket.wait(max(0.0, ends_s - store.now_s()))
        block = ticket.take() if is_here else None
        if block is not None and len(block.data) == block_bytes:
            blocks.append(block)
            continue
        if block is not None:
            block.release()
        for late in tickets[number:]:
            late.abandon()
        break
    return blocks
