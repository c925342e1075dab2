"""What the policy would do and how long it would take, over prompt lengths and tiers; pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from policies.cost_model import ComputeCost, LoadCost
from policies.planning import Choice, PlanRequest
from policies.reload import Measured
from policies.split import Splits

_FIRST_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Server:
    """Whatever computes: its costs, how much it computes in a step, and the blocks that it keeps."""

    compute: ComputeCost
    chunk_tokens: int
    block_tokens: int
    token_bytes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """One prompt, one tier that holds all of its whole blocks. Seconds to the first token.

    ``computed_tokens`` and ``loaded_tokens`` are the split that is planned, ``both_s`` what it takes;
    ``compute_s`` and ``load_s`` are the alternatives. ``break_even_bytes_per_s`` is the rate at which,
    with the tier's latency, loading takes as long as computing; ``None`` where no rate is enough.
    """

    computed_tokens: int
    loaded_tokens: int
    compute_s: float
    load_s: float
    both_s: float
    break_even_bytes_per_s: float | None
    reason: str

    @property
    def of_better(self) -> float:
        """What is planned, as a share of the better of the alternatives."""
        return self.both_s / min(self.compute_s, self.load_s)


@dataclass(frozen=True, slots=True)
class Length:
    """One prompt length: computing alone, the break-even rate of a tier without latency, and each tier."""

    prompt_tokens: int
    compute_s: float
    break_even_bytes_per_s: float | None
    tiers: Mapping[str, Outcome]


def outlook(server: Server, tiers: Mapping[str, LoadCost], lengths: Sequence[int]) -> list[Length]:
    """Return what is to be expected of prompts of ``lengths`` tokens, each tier by itself."""
    return [_length(server, tiers, num_tokens) for num_tokens in lengths]


def usual_lengths(context_tokens: int) -> list[int]:
    """Return the lengths that are shown when none are named: doubling from 128 to the whole context."""
    return [*_doubled(context_tokens), context_tokens]


def _doubled(context_tokens: int) -> Iterator[int]:
    num_tokens = _FIRST_TOKENS
    while num_tokens < context_tokens:
        yield num_tokens
        num_tokens *= 2


def _length(server: Server, tiers: Mapping[str, LoadCost], num_tokens: int) -> Length:
    return Length(
        prompt_tokens=num_tokens,
        compute_s=server.compute.prefill_s(0, num_tokens, server.chunk_tokens),
        break_even_bytes_per_s=_break_even(server, 0.0, num_tokens),
        tiers={name: _outcome(server, load, num_tokens) for name, load in tiers.items()},
    )


def _outcome(server: Server, load: LoadCost, num_tokens: int) -> Outcome:
    plan = Measured().plan(_request(server, load, num_tokens))
    loaded_tokens = plan.choices.count(Choice.LOAD) * server.block_tokens
    return Outcome(
        computed_tokens=num_tokens - loaded_tokens,
        loaded_tokens=loaded_tokens,
        compute_s=plan.prediction.if_computed_s,
        load_s=plan.prediction.if_loaded_s,
        both_s=plan.prediction.ttft_s,
        break_even_bytes_per_s=_break_even(server, load.latency_s, num_tokens),
        reason=plan.reason,
    )


def _break_even(server: Server, latency_s: float, num_tokens: int) -> float | None:
    """Return the rate at which loading all and computing all take equally long.

    A line without end of rate tells what loading costs beside the bytes.
    """
    splits = Splits(_request(server, LoadCost(latency_s, math.inf), num_tokens))
    left_s = splits.all_computed().ttft_s - splits.all_loaded().ttft_s
    nbytes = num_tokens // server.block_tokens * server.block_tokens * server.token_bytes
    return nbytes / left_s if left_s > 0 and nbytes else None


def _request(server: Server, load: LoadCost, num_tokens: int) -> PlanRequest:
    tier = "tier"
    return PlanRequest(
        tiers=[tier] * (num_tokens // server.block_tokens),
        prompt_tokens=num_tokens,
        block_tokens=server.block_tokens,
        block_bytes=server.block_tokens * server.token_bytes,
        compute=server.compute,
        loads={tier: load},
        chunk_tokens=server.chunk_tokens,
    )
