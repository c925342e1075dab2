"""Between blocks at rest and the keys and values of transformers' layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from backends.kv_shape import KVShape

States = tuple[torch.Tensor, torch.Tensor]
"""One layer's keys and values: of a batch ``[rows, heads, columns, dim]``, of a block without rows."""


def empty_states(shape: KVShape, num_rows: int, num_columns: int, device: torch.device) -> list[States]:
    """Return zeros for each layer."""
    dimensions = num_rows, shape.num_kv_heads, num_columns, shape.head_dim

    def zeros() -> torch.Tensor:
        return torch.zeros(dimensions, dtype=shape.dtype, device=device)

    return [(zeros(), zeros()) for _ in range(shape.num_layers)]


def read_block(shape: KVShape, data: memoryview, states: Sequence[States], row: int, column: int) -> None:
    """Copy a block into a row's columns from ``column`` on, as far as there are columns."""
    (kept,) = shape.views(data)
    num_tokens = min(shape.block_tokens, states[0][0].shape[2] - column)
    for layer, planes in enumerate(states):
        for kind, plane in enumerate(planes):
            plane[row, :, column : column + num_tokens] = kept[layer, kind, :num_tokens].transpose(0, 1)


def write_block(shape: KVShape, block: Sequence[States], view: memoryview) -> None:
    """Copy one block's keys and values to ``view``, as they lie at rest."""
    (kept,) = shape.views(view)
    for layer, planes in enumerate(block):
        for kind, plane in enumerate(planes):
            kept[layer, kind].copy_(plane.transpose(0, 1))
