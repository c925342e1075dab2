"""Says whether a page that was computed again is the one that is stored."""

from __future__ import annotations

import torch

from engine_adapter.sglang.memory import Pieces, num_bytes

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.05}
"""How much a piece may differ by rounding, as a share of its norm; another prompt's differs by all of it."""


def can_compare(dtype: object) -> bool:
    """Say whether numbers of a dtype can be told from each other: not where SGLang packs them as bytes."""
    return dtype in _TOLERANCE


def is_close(computed: Pieces, stored: memoryview, dtype: torch.dtype) -> bool:
    """Say whether two pages are the same but for rounding, piece by piece."""
    if len(stored) != num_bytes(computed):
        return False
    start = 0
    for piece in computed:
        ours, theirs = _numbers(piece, dtype), _numbers(stored[start : start + len(piece)], dtype)
        start += len(piece)
        # Not turned around: what is not a number is not close.
        if not bool((ours - theirs).norm() <= _TOLERANCE[dtype] * ours.norm()):
            return False
    return True


def _numbers(data: memoryview, dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).float()
