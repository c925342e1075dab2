"""How many chunks of a prompt to load from our store, where LMCache knows no more than we can tell it.

::

    chunk      0   1 | 2   3   4   5 | not found
    held in    L1  L1  disk disk disk disk
    loading          | ════════>|
    computing                   | ═══════════════>

LMCache's server never computes, and is not told what computing costs: it is what ``prefill_tokens_per_s``
says, the same for every token. What loading costs is measured. Chunks after the last one loaded are left to
the engine.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from policies.cost_model import ComputeCost, LoadCost
from policies.leading import leading_blocks
from policies.planning import READY, PlanRequest
from policies.reload import Measured

_FREE = LoadCost(0.0, math.inf)


@dataclass(frozen=True, slots=True)
class Column:
    """One chunk of a prompt, with all ranks and groups: bytes to load, and the slowest tier they are in.

    Without a tier it need not be loaded.
    """

    tier: str | None
    nbytes: int


def num_worth_having(
    columns: Sequence[Column],
    chunk_tokens: int,
    prefill_tokens_per_s: float,
    loads: Mapping[str, LoadCost],
    stale: Collection[str],
) -> int:
    """Return with how many of its leading chunks a prompt is complete soonest.

    Of a tier that was never measured all is worth loading, and of one that was not heard of for a while the
    first chunk at least, so that a change is noticed. Without a rate of computing all is.
    """
    wanted = [column for column in columns if column.tier is not None]
    if not prefill_tokens_per_s or not wanted:
        return len(columns)
    most_bytes = max(column.nbytes for column in wanted)
    request = PlanRequest(
        tiers=tuple(column.tier or READY for column in columns),
        prompt_tokens=len(columns) * chunk_tokens + 1,
        block_tokens=chunk_tokens,
        block_bytes=most_bytes,
        compute=ComputeCost(0.0, 1 / prefill_tokens_per_s, 0.0),
        loads={**loads, READY: _FREE},
        chunk_tokens=chunk_tokens,
    )
    num_ready = next(index for index, column in enumerate(columns) if column.tier is not None)
    num_loaded = leading_blocks(Measured(), request, _FREE).num_blocks
    if not num_loaded and wanted[0].tier in stale:
        num_loaded = 1
    return num_ready + num_loaded
