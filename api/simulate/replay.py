"""Replays a trace through a cache and counts what is hit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from api.simulate.trace import Trace
from api.simulate.worth import Account, Prices, Worth

_REQUESTS_BETWEEN_REPORTS = 64


class Cache(Protocol):
    """What a trace can be replayed through, request after request from its first."""

    def serve(self, number: int) -> int:
        """Serve request ``number`` of the trace; returns how many of its blocks were hit, from the first."""
        ...

    def __len__(self) -> int:
        """Return how many blocks are resident."""
        ...


@dataclass(frozen=True, slots=True)
class Cell:
    """What a policy hits at a capacity.

    ``token_hit_ratio`` is of all prompt tokens, ``block_hit_ratio`` of all blocks named. ``mean_blocks`` is
    how many are resident after a request, in the mean over all. The replay took ``seconds``. ``worth`` is
    there where costs are given.
    """

    policy: str
    capacity_blocks: int
    token_hit_ratio: float
    block_hit_ratio: float
    mean_blocks: float
    seconds: float
    worth: Worth | None = None


def replay(
    trace: Trace,
    policy: str,
    capacity_blocks: int,
    cache: Cache,
    on_served: Callable[[int], None] = lambda _num: None,
    prices: Prices | None = None,
) -> Cell:
    """Serve the whole trace; ``on_served`` hears now and then how many more requests were served."""
    account = Account(prices, trace.block_tokens) if prices else None
    began_s = time.perf_counter()
    hit_tokens = hit_blocks = resident_blocks = 0
    for number, request in enumerate(trace.requests):
        num_hit = cache.serve(number)
        hit_blocks += num_hit
        num_tokens = min(num_hit * trace.block_tokens, request.input_tokens)
        hit_tokens += num_tokens
        if account is not None:
            account.add(num_tokens, request.input_tokens)
        resident_blocks += len(cache)
        if number % _REQUESTS_BETWEEN_REPORTS == 0:
            on_served(_REQUESTS_BETWEEN_REPORTS)
    return Cell(
        policy,
        capacity_blocks,
        token_hit_ratio=hit_tokens / trace.num_tokens,
        block_hit_ratio=hit_blocks / trace.num_accesses,
        mean_blocks=resident_blocks / len(trace.requests),
        seconds=time.perf_counter() - began_s,
        worth=account.worth() if account else None,
    )
