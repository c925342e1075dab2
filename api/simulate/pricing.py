"""From the flags of ``prefixd simulate`` to what computing and loading cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from api.plan.amounts import parse_line
from api.plan.shape import ModelShape, read_config, shape_of
from api.plan.speed import compute_cost, measured_speed
from api.quantities import parse_bytes
from api.simulate.worth import Prices
from engine_adapter.cost_file import costs_in
from engine_adapter.engine.costs import KnownCosts
from kvstore.errors import ConfigError
from policies.cost_model import ComputeCost, LoadCost
from policies.steps import StepCosts

_CHUNK_TOKENS = 512

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class CostFlags:
    """What was said of costs, as it was written; ``None``: nothing."""

    prefill_tok_s: float | None = None
    load: str | None = None
    kv_token_bytes: str | None = None
    model: Path | None = None
    costs: Path | None = None
    tier: str | None = None


def prices(flags: CostFlags) -> Prices | None:
    """Return what is asked to be reckoned with; ``None``: nothing. Raises ``ConfigError``."""
    if flags == CostFlags():
        return None
    known = costs_in(flags.costs) if flags.costs else KnownCosts()
    shape = shape_of("the model", read_config(flags.model), {}) if flags.model else None
    compute, chunk_tokens = _compute(flags, known, shape)
    load = _load(flags, known)
    token_bytes = _token_bytes(flags, shape)
    if load is not None and token_bytes is None:
        raise ConfigError(
            "kv_token_bytes", "how many bytes a token's keys and values have? Or give --model DIR"
        )
    if load is None and flags.kv_token_bytes is not None:
        raise ConfigError("kv_token_bytes", "says nothing without --load or --costs")
    return Prices(compute, chunk_tokens, load, token_bytes or 0.0)


def _compute(flags: CostFlags, known: KnownCosts, shape: ModelShape | None) -> tuple[ComputeCost, int]:
    if flags.prefill_tok_s is not None:
        if shape is not None:
            speed = measured_speed(flags.prefill_tok_s, shape, _CHUNK_TOKENS)
            return compute_cost(shape, speed, _CHUNK_TOKENS), _CHUNK_TOKENS
        return ComputeCost(0.0, 1 / flags.prefill_tok_s, 0.0), _CHUNK_TOKENS
    cost = StepCosts(known.steps).cost()
    if cost is None:
        raise ConfigError("prefill_tok_s", "how fast are prompts computed? Or give --costs FILE of a server")
    chunk_tokens = max(step.work.tokens for step in known.steps)
    return replace(cost, loaded_byte_s=known.loaded_byte_s), max(1, chunk_tokens)


def _load(flags: CostFlags, known: KnownCosts) -> LoadCost | None:
    if flags.load is not None:
        return _parsed("load", parse_line, flags.load)
    if flags.tier is None and not known.lines:
        return None
    tier = flags.tier or (next(iter(known.lines)) if len(known.lines) == 1 else None)
    state = known.lines.get(tier) if tier else None
    if state is None:
        named = ", ".join(sorted(known.lines)) or "none"
        raise ConfigError(
            "tier", f"which tier is simulated? --costs knows loads of {named}; else give --load RATE,LATENCY"
        )
    return LoadCost(state.latency_s, state.bytes_per_s)


def _token_bytes(flags: CostFlags, shape: ModelShape | None) -> float | None:
    if flags.kv_token_bytes is None:
        return float(shape.token_bytes) if shape else None
    num_bytes = _parsed("kv_token_bytes", parse_bytes, flags.kv_token_bytes)
    if num_bytes <= 0:
        raise ConfigError("kv_token_bytes", f"{flags.kv_token_bytes} is not above 0")
    return float(num_bytes)


def _parsed(setting: str, parse: Callable[[str], Value], text: str) -> Value:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(setting, f"{text}: {error}") from error
