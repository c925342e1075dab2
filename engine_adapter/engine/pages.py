"""Pages of the pool as kernels take them: views of a layer, and tables of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine_adapter.engine.attention import Span
from engine_adapter.engine.kv_forms import Kept, ScaledPlane


def pages_of(keys: Kept, values: Kept, block_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return views of a layer, ``[pages, block_tokens, num_kv_heads, head_dim]``.

    Raises ``TypeError`` for forms in 8 bits.
    """
    if isinstance(keys, ScaledPlane) or isinstance(values, ScaledPlane):
        raise TypeError("it reads plain keys and values alone")
    pages = (-1, block_tokens, *keys.shape[1:])
    return keys.view(pages), values.view(pages)


def page_table(spans: Sequence[Span]) -> torch.Tensor:
    """Return the pages of each span, ``[len(spans), most pages]``, int32 on the CPU; 0 behind the last."""
    widest = max(len(span.blocks) for span in spans)
    return int32([[*span.blocks, *[0] * (widest - len(span.blocks))] for span in spans])


def key_ends(spans: Sequence[Span]) -> torch.Tensor:
    """Return how many keys each span has, int32 on the CPU."""
    return int32([span.end for span in spans])


def int32(values: Sequence[int] | Sequence[Sequence[int]]) -> torch.Tensor:
    """Return ``values`` as kernels take them."""
    return torch.tensor(values, dtype=torch.int32)
