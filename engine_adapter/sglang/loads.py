"""Loads a batch of pages, a few of them on their way at a time."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from kvstore.errors import LeaseExpiredError
from kvstore.interface import BlockStore
from kvstore.loading import LoadedBlock, Ticket

_log = logging.getLogger(__name__)

Land = Callable[[int, LoadedBlock], None]


def load_each(
    store: BlockStore,
    keys: Sequence[bytes],
    land: Land,
    deadline_s: float,
    ttl_s: float | None,
    most_on_way: int = 1,
) -> None:
    """Call ``land`` with the number and the bytes of each page that comes, in order, up to the first miss.

    Up to ``most_on_way`` are asked for at a time. Blocks until then, at most ``deadline_s``. The bytes are
    given back when ``land`` returns. Raises ``StoreClosedError``, and what ``land`` does.
    """
    ends_s = store.now_s() + deadline_s
    hit = store.lookup(keys, lease_s=deadline_s + 1.0, ttl_s=ttl_s)
    num_found = hit.tiers.index(None) if None in hit.tiers else len(hit.tiers)
    on_way = deque[Ticket]()
    try:
        for index in range(num_found):
            for number in range(index + len(on_way), min(num_found, index + most_on_way)):
                on_way.append(store.load(hit, number, ends_s))
            if not _landed(on_way.popleft(), store, ends_s, index, land):
                break
    except LeaseExpiredError:
        _log.debug("a lease ended before its pages were loaded")
    finally:
        for late in on_way:
            late.abandon()
        hit.release()


def _landed(ticket: Ticket, store: BlockStore, ends_s: float, index: int, land: Land) -> bool:
    block = ticket.take() if ticket.wait(max(0.0, ends_s - store.now_s())) else None
    if block is None:
        ticket.abandon()
        return False
    try:
        land(index, block)
    finally:
        block.release()
    return True
