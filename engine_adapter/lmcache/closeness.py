"""Whether two chunks are the same but for rounding."""

from __future__ import annotations

import math

import torch

from engine_adapter.lmcache.identity import Layout

_TOLERANCE = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.05, "float8_e4m3fn": 0.3, "float8_e5m2": 0.3}


def is_close(layout: Layout, computed: memoryview, stored: memoryview) -> bool | None:
    """Say whether two chunks differ by no more than rounding; ``None``: their numbers cannot be read.

    Rounding depends on how a prompt was cut into steps, so that each layer's keys and values may differ by a
    small share of their norm. A part's first two dimensions are taken for these.
    """
    if any(dtype not in _TOLERANCE for dtype in layout.dtypes):
        return None
    start = 0
    for shape, name in zip(layout.shapes, layout.dtypes, strict=True):
        dtype: torch.dtype = getattr(torch, name)
        end = start + math.prod(shape) * dtype.itemsize
        if end > len(computed) or len(computed) != len(stored):
            return None
        num_rows = math.prod(shape[:2]) if len(shape) > 2 else 1
        ours, theirs = (
            torch.frombuffer(data[start:end], dtype=dtype).float().reshape(num_rows, -1)
            for data in (computed, stored)
        )
        error = (ours - theirs).norm(dim=1)
        # Not ``<=`` turned around: what is not a number is not equal.
        if not bool((error <= _TOLERANCE[name] * ours.norm(dim=1)).all()):
            return False
        start = end
    return True
