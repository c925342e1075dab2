"""Whether numbers that were computed twice are the same but for rounding.

Rounding depends on how a prompt was cut into steps, so keys and values may differ by a small share of their
norm; another block's differ by as much as they are. In 8 bits that rounding tips codes over to the next one,
so the share is larger.
"""

from __future__ import annotations

import torch

_TOLERANCE = {
    torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.05,
    torch.int8: 0.3, torch.float8_e4m3fn: 0.3, torch.float8_e5m2: 0.3,
}  # fmt: skip


def can_compare(dtype: object) -> bool:
    """Say whether it is known how much numbers of this dtype may differ."""
    return dtype in _TOLERANCE


def are_close(computed: torch.Tensor, stored: torch.Tensor, dtype: torch.dtype) -> bool:
    """Say whether each row of ``[rows, numbers]`` is the same but for the rounding of ``dtype``."""
    ours, theirs = computed.float(), stored.float()
    error = (ours - theirs).norm(dim=1)
    # Not ``<=`` turned around: what is not a number is not equal.
    return bool((error <= _TOLERANCE[dtype] * ours.norm(dim=1)).all())
