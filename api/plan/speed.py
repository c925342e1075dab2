"""What steps cost on a device that was never measured: operations over rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from api.plan.presets import Device
from api.plan.shape import ModelShape
from policies.cost_model import ComputeCost, attended_between


@dataclass(frozen=True, slots=True)
class Speed:
    """Operations per second that prefill really gets, and the rate at which steps read the weights."""

    flops: float
    memory_bytes_per_s: float = math.inf


def device_speed(device: Device, utilisation: float) -> Speed:
    """Return what prefill gets of ``device`` when it uses a part of its peak."""
    return Speed(device.peak_flops * utilisation, device.memory_bytes_per_s)


def measured_speed(
    tokens_per_s: float, shape: ModelShape, chunk_tokens: int, device: Device | None = None
) -> Speed:
    """Return the speed of whatever computes the first ``chunk_tokens`` of a prompt at ``tokens_per_s``.

    How fast it reads weights is known of a ``device`` only; without one a step costs nothing of its own.
    """
    flops = chunk_tokens * shape.token_flops + attended_between(0, chunk_tokens) * shape.pair_flops
    memory_bytes_per_s = device.memory_bytes_per_s if device else math.inf
    return Speed(flops * tokens_per_s / chunk_tokens, memory_bytes_per_s)


def compute_cost(shape: ModelShape, speed: Speed, chunk_tokens: int) -> ComputeCost:
    """Return what steps cost, ``chunk_tokens`` at most in each.

    A step reads the weights once: that alone is what a step with few tokens takes. A full chunk takes as
    long as its operations, or as reading where that is longer; in between, a straight line.
    """
    step_s = shape.weight_bytes / speed.memory_bytes_per_s
    full_s = max(step_s, chunk_tokens * shape.token_flops / speed.flops)
    return ComputeCost(
        step_s=step_s,
        token_s=(full_s - step_s) / chunk_tokens,
        attended_s=shape.pair_flops / speed.flops,
    )
