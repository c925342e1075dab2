"""Which resident blocks of a prompt to load, and which to compute: the policies by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from policies.planning import READY, Choice, Plan, PlanRequest, is_loadable
from policies.split import Split, Splits
from policies.wording import format_seconds

_PROBED_BLOCKS = 2
_LEAST_GAIN = 0.05


class AlwaysLoad:
    """Loads every resident block, whatever it costs."""

    weighs_costs = False

    def plan(self, request: PlanRequest) -> Plan:
        return _load_all(request, "every block that a tier has is loaded")


class AlwaysCompute:
    """Loads nothing: what the device does not have is computed."""

    weighs_costs = False

    def plan(self, request: PlanRequest) -> Plan:
        return _compute_all(request, "everything is computed")


@dataclass(frozen=True, slots=True)
class Static:
    """Loads if at least ``least_tokens`` can be reused and fewer than ``busy_waiting`` requests wait.

    The rule of llm-d-router's proposal 2833; decided once a request.
    """

    weighs_costs: ClassVar[bool] = False
    least_tokens: int = 1024
    busy_waiting: int = 8

    def plan(self, request: PlanRequest) -> Plan:
        if request.previous is not None:
            decided = zip(request.previous.choices, request.tiers, strict=True)
            is_loaded = any(choice is Choice.LOAD and is_loadable(tier) for choice, tier in decided)
        else:
            num_reusable = sum(tier is not None for tier in request.tiers) * request.block_tokens
            is_loaded = num_reusable >= self.least_tokens and request.num_waiting < self.busy_waiting
        rule = f"{self.least_tokens} reusable tokens and fewer than {self.busy_waiting} waiting"
        if is_loaded:
            return _load_all(request, f"loaded: at least {rule}")
        return _compute_all(request, f"computed: not {rule}")


@dataclass(frozen=True, slots=True)
class Timeout:
    """Loads every resident block, but computes what has not arrived after ``timeout_s``."""

    weighs_costs: ClassVar[bool] = False
    timeout_s: float = 0.5

    def plan(self, request: PlanRequest) -> Plan:
        if request.elapsed_s < self.timeout_s:
            return _load_all(request, f"loaded for up to {self.timeout_s:g} s")
        return _compute_all(request, f"what had not arrived after {self.timeout_s:g} s is computed")


class Measured:
    """Computes the head and loads the tail, split where measured costs say that both end together.

    With costs that make one of them pointless it does only the other; loads are not begun for a gain
    that is smaller than the forecast's error. A tier that it does not use is asked for a few blocks
    now and then, so that a change is noticed.
    """

    weighs_costs = True

    def plan(self, request: PlanRequest) -> Plan:
        splits = Splits(request)
        best, alone, loaded = splits.best(), splits.all_computed(), splits.all_loaded()
        if not _is_computing(request) and not _is_worth(best, loaded, request.elapsed_s):
            best = loaded
        if not request.in_flight and not _is_worth(best, alone):
            best = alone
        plan = _plan(request, splits, best, "")
        return replace(plan, reason=_sentence(request, plan), probes=_probes(request, best))


def _is_computing(request: PlanRequest) -> bool:
    """Say whether the plan before has something computed that could be loaded as well."""
    choices = request.previous.choices if request.previous else ()
    pairs = zip(choices, request.tiers, strict=False)
    return any(choice is Choice.COMPUTE and is_loadable(tier) for choice, tier in pairs)


def _is_worth(split: Split, simpler: Split, elapsed_s: float = 0.0) -> bool:
    """Say whether doing both gains more than a small share of what the simpler way takes in all."""
    return simpler.cost_s - split.cost_s >= _LEAST_GAIN * (elapsed_s + simpler.cost_s)


def _load_all(request: PlanRequest, reason: str) -> Plan:
    splits = Splits(request)
    choices = tuple(Choice.COMPUTE if tier is None else Choice.LOAD for tier in request.tiers)
    return replace(_plan(request, splits, splits.all_loaded(), reason), choices=choices)


def _compute_all(request: PlanRequest, reason: str) -> Plan:
    splits = Splits(request)
    return _plan(request, splits, splits.all_computed(), reason)


def _plan(request: PlanRequest, splits: Splits, split: Split, reason: str) -> Plan:
    choices = tuple(
        Choice.LOAD
        if tier == READY or (index >= split.first_loaded and tier in split.sources)
        else Choice.COMPUTE
        for index, tier in enumerate(request.tiers)
    )
    return Plan(choices, splits.prediction(split), reason)


def _probes(request: PlanRequest, split: Split) -> tuple[int, ...]:
    """Return the last blocks of each tier that is not used and of which nothing was heard for long."""
    used = {request.tiers[index] for index in range(split.first_loaded, len(request.tiers))} & split.sources
    unheard = {tier for tier in request.tiers if is_loadable(tier) and tier not in request.loads}
    probes: list[int] = []
    for tier in (request.stale | unheard) - used:
        blocks = [index for index, held in enumerate(request.tiers) if held == tier]
        probes += blocks[-_PROBED_BLOCKS:]
    return tuple(sorted(probes))


def _sentence(request: PlanRequest, plan: Plan) -> str:
    prediction = plan.prediction
    pairs = list(zip(plan.choices, request.tiers, strict=True))
    num_loaded = sum(choice is Choice.LOAD and tier != READY for choice, tier in pairs)
    sources = sorted({tier for choice, tier in pairs if choice is Choice.LOAD and is_loadable(tier)})
    loaded = f"{num_loaded * request.block_tokens} tokens from {' and '.join(sources)}"
    alone = f"{format_seconds(prediction.if_computed_s)} to compute everything"
    alternatives = f"{alone}, {format_seconds(prediction.if_loaded_s)} to load all that can be loaded"
    if not any(map(is_loadable, request.tiers)):
        return f"nothing to load: computing takes {format_seconds(prediction.ttft_s)}"
    if not num_loaded:
        return f"computing alone is fastest: {alternatives}"
    first_loaded = pairs.index(next(pair for pair in pairs if pair[0] is Choice.LOAD and pair[1] != READY))
    before = [tier for choice, tier in pairs[:first_loaded] if choice is Choice.COMPUTE]
    whole = format_seconds(prediction.ttft_s)
    if not any(map(is_loadable, before)):
        meanwhile = f", with {len(before) * request.block_tokens} that no tier has computed" if before else ""
        return f"loading is fastest: {loaded}{meanwhile}, {whole} in all; {alone}"
    num_before = len(before) * request.block_tokens
    return (
        f"both at once: {loaded} while the {num_before} before them are computed, {whole} in all; "
        f"{alternatives}"
    )
