"""From the flags of ``prefixd plan`` to what is asked: a server, tiers, lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from api.plan.amounts import parse_count, parse_line
from api.plan.outlook import Server, usual_lengths
from api.plan.presets import DEFAULT_LINKS, DEVICES, LINKS, UTILISATION, Device
from api.plan.shape import ModelShape, read_config, shape_of
from api.plan.speed import Speed, compute_cost, device_speed, measured_speed
from kvstore.errors import ConfigError
from policies.cost_model import LoadCost

_MOST_TOKENS = 1 << 24
_DEFAULT_DEVICE = "H100"

Value = TypeVar("Value")


@dataclass(frozen=True)
class Question:
    """What is to be planned. ``what_computes`` and ``what_loads`` say in words what the numbers stand for."""

    shape: ModelShape
    server: Server
    what_computes: str
    tiers: Mapping[str, LoadCost]
    what_loads: Mapping[str, str]
    lengths: Sequence[int]


@dataclass(frozen=True)
class Computing:
    """How fast is computed, as given: a preset's name, what of its peak is used, a rate of one's own."""

    device: str | None = None
    utilisation: float | None = None
    prefill_tok_s: float | None = None


def model_shape(folder: Path | None, given: Mapping[str, Any]) -> ModelShape:
    """Return the shape of the model in ``folder``, or of what is ``given`` alone. Raises ``ConfigError``."""
    config = read_config(folder) if folder else {}
    name = (folder.resolve().name if folder.is_dir() else folder.stem) if folder else "a model"
    parameters = given.get("parameters")
    count = None if parameters is None else _parsed("parameters", parse_count, str(parameters))
    return shape_of(name, config, {**given, "parameters": count})


def question(
    shape: ModelShape,
    computing: Computing,
    tiers: Sequence[str],
    lengths: str | None,
    chunk_tokens: int,
    block_tokens: int,
) -> Question:
    """Return what the flags ask. Raises ``ConfigError``."""
    speed, what_computes = _speed(computing, shape, chunk_tokens)
    compute = compute_cost(shape, speed, chunk_tokens)
    named = [_tier(text) for text in tiers or DEFAULT_LINKS]
    return Question(
        shape=shape,
        server=Server(compute, chunk_tokens, block_tokens, shape.token_bytes),
        what_computes=what_computes,
        tiers={name: load for name, load, _ in named},
        what_loads={name: what for name, _, what in named},
        lengths=_lengths(lengths, shape.context_tokens),
    )


def _speed(computing: Computing, shape: ModelShape, chunk_tokens: int) -> tuple[Speed, str]:
    device = _device(computing.device) if computing.device else None
    if computing.prefill_tok_s is not None:
        if computing.utilisation is not None:
            raise ConfigError("utilisation", "says the same as --prefill-tok-s: give one of them")
        speed = measured_speed(computing.prefill_tok_s, shape, chunk_tokens, device)
        return speed, f"{computing.prefill_tok_s:g} tokens/s" + (f" on {device.name}" if device else "")
    device = device or DEVICES[_DEFAULT_DEVICE]
    share = UTILISATION if computing.utilisation is None else computing.utilisation
    if not 0 < share <= 1:
        raise ConfigError("utilisation", f"{share:g} is no share of a peak: more than 0, at most 1")
    return device_speed(device, share), f"{device.name}, {share:.0%} of {device.peak_flops / 1e12:.0f} TFLOPS"


def _device(name: str) -> Device:
    device = next((device for known, device in DEVICES.items() if known.lower() == name.lower()), None)
    if device is None:
        raise ConfigError("device", f"{name} is not one of {', '.join(DEVICES)}; or give --prefill-tok-s")
    return device


def _tier(text: str) -> tuple[str, LoadCost, str]:
    """Return name, costs and description of a preset or of ``name=rate,latency``."""
    name, is_own, line = text.partition("=")
    if is_own and name:
        return name, _parsed("tier", parse_line, line), "as given"
    if name not in LINKS:
        reason = f"{text} is neither name=rate,latency (like nfs=1.2GB/s,2ms) nor one of {', '.join(LINKS)}"
        raise ConfigError("tier", reason)
    return name, LINKS[name].cost, LINKS[name].what


def _lengths(text: str | None, context_tokens: int) -> list[int]:
    if text is None:
        return usual_lengths(min(context_tokens, _MOST_TOKENS))
    try:
        lengths = sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise ConfigError("lengths", f"{text} is no list of lengths like 512,2048,8192") from error
    if not 1 <= lengths[0] <= lengths[-1] <= _MOST_TOKENS:
        raise ConfigError("lengths", f"{text}: each is between 1 and {_MOST_TOKENS}")
    return lengths


def _parsed(setting: str, parse: Callable[[str], Value], text: str) -> Value:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(setting, f"{text}: {error}") from error
