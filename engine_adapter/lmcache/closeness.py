"""Whether two chunks are the same but for rounding."""

from __future__ import annotations

import math

import torch

from engine_adapter.closeness import are_close, can_compare
from engine_adapter.lmcache.identity import Layout


def is_close(layout: Layout, computed: memoryview, stored: memoryview) -> bool | None:
    """Say whether two chunks differ by no more than rounding; ``None``: their numbers cannot be read.

    A part's first two dimensions are taken for its layers, and their keys and values.
    """
    dtypes = [dtype for name in layout.dtypes if (dtype := _floating(name)) is not None]
    if len(dtypes) < len(layout.dtypes):
        return None
    start = 0
    for shape, dtype in zip(layout.shapes, dtypes, strict=True):
        end = start + math.prod(shape) * dtype.itemsize
        if end > len(computed) or len(computed) != len(stored):
            return None
        num_rows = math.prod(shape[:2]) if len(shape) > 2 else 1
        ours, theirs = (
            torch.frombuffer(data[start:end], dtype=dtype).reshape(num_rows, -1)
            for data in (computed, stored)
        )
        if not are_close(ours, theirs, dtype):
            return False
        start = end
    return True


def _floating(name: str) -> torch.dtype | None:
    """Return a dtype by its name; ``None``: its numbers are no floating point that can be compared."""
    dtype = getattr(torch, name, None)
    is_floating = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    return dtype if is_floating and can_compare(dtype) else None
