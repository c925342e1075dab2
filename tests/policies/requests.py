"""Requests for plans, in round numbers: 16 tokens a block, a million bytes, 16 ms to compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from policies.cost_model import ComputeCost, LoadCost
from policies.planning import PlanRequest

BLOCK_TOKENS = 16
BLOCK_BYTES = 1_000_000
BLOCK_COMPUTE_S = 0.016
BREAK_EVEN = BLOCK_BYTES / BLOCK_COMPUTE_S
"""The rate at which a block is loaded in the time it takes to compute it."""

EVENLY = ComputeCost(step_s=0.0, token_s=BLOCK_COMPUTE_S / BLOCK_TOKENS, attended_s=0.0)


def line(times_break_even: float, latency_s: float = 0.0, queue_s: float = 0.0) -> LoadCost:
    return LoadCost(latency_s, BREAK_EVEN * times_break_even, queue_s)


def about(
    tiers: Sequence[str | None], loads: Mapping[str, LoadCost] | None = None, **facts: Any
) -> PlanRequest:
    """Return a request about a prompt of whole blocks and 5 tokens more."""
    facts = {
        "prompt_tokens": len(tiers) * BLOCK_TOKENS + 5,
        "compute": EVENLY,
        "chunk_tokens": 512,
        "block_tokens": BLOCK_TOKENS,
        "block_bytes": BLOCK_BYTES,
        **facts,
    }
    return PlanRequest(tiers=tiers, loads=loads or {}, **facts)
