"""The door for reload policies: what they are told, and what they answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeGuard

from policies.cost_model import ComputeCost, LoadCost


class Choice(Enum):
    """Who provides a block that is wanted."""

    LOAD = "load"
    COMPUTE = "compute"


READY = "ready"
"""Stands for a tier where a block needs neither: its keys and values are on the device already."""


def is_loadable(tier: str | None) -> TypeGuard[str]:
    """Say whether a block that is in ``tier`` would have to be loaded from there."""
    return tier not in {None, READY}


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A prompt that is not complete yet, and what everything costs now. Times are in seconds.

    ``tiers[i]`` is where block i can be loaded from, ``READY``, or ``None`` when it is nowhere;
    blocks in ``in_flight`` are on their way and part of their tier's queue. Tokens behind the last
    whole block are always computed. Computing has come to ``position``; earlier requests keep the
    device busy for ``compute_queue_s`` more. ``device_price`` is how many seconds other requests
    lose for each that this one computes, ``line_prices`` likewise for each it keeps a tier busy.
    Of ``stale`` tiers nothing was heard for long; a tier missing from ``loads`` was never measured.
    ``elapsed_s`` has passed since the first plan for this prompt, and ``previous`` is the latest; a prompt
    that lost all its blocks on the way begins again, without either.
    """

    tiers: Sequence[str | None]
    prompt_tokens: int
    block_tokens: int
    block_bytes: int
    compute: ComputeCost
    loads: Mapping[str, LoadCost]
    chunk_tokens: int
    in_flight: frozenset[int] = frozenset()
    position: int = 0
    compute_queue_s: float = 0.0
    device_price: float = 0.0
    line_prices: Mapping[str, float] = field(default_factory=dict)
    num_waiting: int = 0
    num_running: int = 0
    stale: frozenset[str] = frozenset()
    elapsed_s: float = 0.0
    previous: Plan | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds from the moment of planning to the first token, as planned and for the two alternatives.

    Of ``ttft_s``, computing keeps the device busy for ``compute_s`` and loading the tiers for
    ``load_s``, at the same time.
    """

    ttft_s: float
    compute_s: float
    load_s: float
    if_computed_s: float
    if_loaded_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """For each whole block of the prompt: load or compute; a block that is nowhere is computed.

    ``probes`` are asked of their tiers though they are computed, to learn what that takes; one that
    comes in time is used. ``reason`` is a sentence for people.
    """

    choices: tuple[Choice, ...]
    prediction: Prediction
    reason: str
    probes: tuple[int, ...] = ()


class ReloadPolicy(Protocol):
    """Decides which resident blocks of a prompt to load and which to compute. A pure function.

    It is asked when a request is admitted, and again whenever something has changed until the
    prompt is complete. Blocks on their way are given up only when computing reaches them.
    """

    @property
    def weighs_costs(self) -> bool:
        """Whether a block that is never loaded faster than computed is of no use to it, and so not stored."""
        ...

    def plan(self, request: PlanRequest) -> Plan:
        """Return the plan for what is missing of one prompt."""
        ...
