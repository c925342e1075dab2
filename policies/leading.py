"""How many leading blocks to load, for an engine that computes only what comes after what was loaded.

::

    block     0   1   2   3 | 4   5   6   7 | rest
    loading   ══════════════>
    computing                 ══════════════════>

Loading takes the same for each block and computing longer for later ones, so of blocks in one tier it is
best to load all or none; where tiers follow each other it may be best to end with one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from policies.cost_model import LoadCost
from policies.planning import READY, Choice, PlanRequest, ReloadPolicy

_LEAST_GAIN = 0.05


@dataclass(frozen=True, slots=True)
class Leading:
    """How many blocks to load behind those that are ready; seconds to the first token so, and computed.

    ``worth_s[n]`` is what is not computed once ``n`` of them have arrived; empty: nobody weighs that. The
    first is to arrive after ``first_s``.
    """

    num_blocks: int
    ttft_s: float
    if_computed_s: float
    worth_s: tuple[float, ...] = ()
    first_s: float = 0.0


def leading_blocks(policy: ReloadPolicy, request: PlanRequest, unknown: LoadCost) -> Leading:
    """Return how many blocks to load in a row from the first that is not ready.

    A policy that weighs costs would have the head computed while the tail is loaded, which cannot be done
    here: for it the costs are weighed anew. Of any other the plan is followed up to the first block that it
    has computed. ``unknown`` is the cost of tiers that were never measured.
    """
    start = next((index for index, tier in enumerate(request.tiers) if tier != READY), len(request.tiers))
    run = _loadable_run(request, start)
    if not policy.weighs_costs:
        choices = policy.plan(request).choices[start : start + run]
        run = next((index for index, choice in enumerate(choices) if choice is not Choice.LOAD), len(choices))
        return replace(_leading(request, start, run, unknown), worth_s=())
    none = _leading(request, start, 0, unknown)
    best = min(
        (_leading(request, start, num, unknown) for num in _ends(request, start, run)),
        key=lambda leading: leading.ttft_s,
        default=none,
    )
    return best if none.ttft_s - best.ttft_s >= _LEAST_GAIN * none.ttft_s else none


def _loadable_run(request: PlanRequest, start: int) -> int:
    """Return how many blocks in a row can be loaded and leave a token to compute."""
    most = (request.prompt_tokens - 1) // request.block_tokens
    tiers = request.tiers[start:most]
    return next((index for index, tier in enumerate(tiers) if tier is None), len(tiers))


def _ends(request: PlanRequest, start: int, run: int) -> Iterator[int]:
    """Yield after how many blocks one may end: before another tier's, and after the last."""
    tiers = request.tiers[start : start + run]
    yield from (index for index in range(1, run) if tiers[index] != tiers[index - 1])
    if run:
        yield run


def _leading(request: PlanRequest, start: int, num: int, unknown: LoadCost) -> Leading:
    step, cost = request.block_tokens, request.compute
    first, position = start * step, (start + num) * step
    num_by_tier = Counter(request.tiers[start : start + num])
    loaded_s = max(
        (
            _cost_of(tier, request.loads, unknown).load_s(num_blocks * request.block_bytes)
            for tier, num_blocks in num_by_tier.items()
            if tier is not None
        ),
        default=0.0,
    )
    rest_s = cost.prefill_s(position, request.prompt_tokens, request.chunk_tokens)
    all_s = cost.prefill_s(first, request.prompt_tokens, request.chunk_tokens)
    worth_s = tuple(cost.marginal_s(first, first + index * step) for index in range(num + 1))
    first_tier = request.tiers[start] if num else None
    first_s = _cost_of(first_tier, request.loads, unknown).load_s(request.block_bytes) if first_tier else 0.0
    return Leading(num, loaded_s + rest_s, all_s, worth_s, first_s)


def _cost_of(tier: str, loads: Mapping[str, LoadCost], unknown: LoadCost) -> LoadCost:
    return loads.get(tier, unknown)
