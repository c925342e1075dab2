"""What it costs to bring back what a request had computed, when its blocks are taken from it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from policies.cost_model import ComputeCost, LoadCost


def bring_back_s(
    num_tokens: int,
    compute: ComputeCost,
    loads: Iterable[LoadCost],
    block_tokens: int,
    block_bytes: int,
    chunk_tokens: int,
) -> float:
    """Return the seconds until ``num_tokens`` are there again: computed, or whole blocks of them loaded.

    ``loads`` are the costs of the tiers that keep them; the fastest counts.
    """
    num_whole = num_tokens // block_tokens
    rest_s = compute.prefill_s(num_whole * block_tokens, num_tokens, chunk_tokens)
    loaded_s = min((load.load_s(num_whole * block_bytes) for load in loads), default=math.inf)
    return min(compute.prefill_s(0, num_tokens, chunk_tokens), loaded_s + rest_s)
