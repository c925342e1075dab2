"""Says whether a page that was computed again is the one that is stored."""

from __future__ import annotations

import torch

from engine_adapter import closeness
from engine_adapter.sglang.memory import Pieces, num_bytes


def can_compare(dtype: object) -> bool:
    """Say whether numbers of a dtype can be told from each other: not where SGLang packs them as bytes."""
    return isinstance(dtype, torch.dtype) and dtype.itemsize > 1 and closeness.can_compare(dtype)


def is_close(computed: Pieces, stored: memoryview, dtype: torch.dtype) -> bool:
    """Say whether two pages are the same but for rounding, piece by piece."""
    if len(stored) != num_bytes(computed):
        return False
    start = 0
    for piece in computed:
        ours, theirs = _numbers(piece, dtype), _numbers(stored[start : start + len(piece)], dtype)
        start += len(piece)
        if not closeness.are_close(ours, theirs, dtype):
            return False
    return True


def _numbers(data: memoryview, dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(1, -1)
