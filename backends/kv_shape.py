"""The shape of keys and values: of which planes of numbers a block is made, and how they lie at rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from kvstore.namespace import AT_REST_LAYOUT
from kvstore.slab import map_memory

Layout = Literal["layer-first", "block-first"]
"""How a pool lays its blocks out; at rest they are the same."""


@dataclass(frozen=True, slots=True)
class Plane:
    """Numbers of one dtype in a block: ``[num_layers, kinds, block_tokens, num_kv_heads, numbers]``."""

    dimensions: tuple[int, int, int, int, int]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the plane in one block."""
        return math.prod(self.dimensions) * self.dtype.itemsize

    def zeros(self, num_blocks: int, device: torch.device, layout: Layout) -> torch.Tensor:
        """Return the planes of ``num_blocks`` blocks: one after the other, or side by side in each layer.

        Side by side, layer-first, they have ``num_blocks * block_tokens`` tokens.
        """
        layers, kinds, tokens, heads, numbers = self.dimensions
        dimensions: tuple[int, ...] = layers, kinds, num_blocks * tokens, heads, numbers
        if layout == "block-first":
            dimensions = num_blocks, *self.dimensions
        if device.type != "cpu":
            return torch.zeros(dimensions, dtype=self.dtype, device=device)
        # torch's own memory comes in small pages, and each new prompt would pay for the first use of its own.
        memory = map_memory(num_blocks * self.nbytes)
        return torch.frombuffer(memory, dtype=torch.uint8).view(self.dtype).view(dimensions)


@dataclass(frozen=True, slots=True)
class KVShape:
    """The shape of one block: ``[num_layers, 2 (K, V), block_tokens, num_kv_heads, head_dim]``.

    With a ``scale_dtype``, each token has a scale for the values of each layer and head beside them.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_tokens: int
    dtype: torch.dtype
    scale_dtype: torch.dtype | None = None

    @property
    def dimensions(self) -> tuple[int, int, int, int, int]:
        """The dimensions of a block's keys and values, outermost first, as they lie at rest."""
        return self.num_layers, 2, self.block_tokens, self.num_kv_heads, self.head_dim

    @property
    def planes(self) -> tuple[Plane, ...]:
        """What a block is made of, in the order at rest: keys and values, then the values' scales if any."""
        kept = Plane(self.dimensions, self.dtype)
        if self.scale_dtype is None:
            return (kept,)
        scales = self.num_layers, 1, self.block_tokens, self.num_kv_heads, 1
        return kept, Plane(scales, self.scale_dtype)

    @property
    def layout(self) -> str:
        """The order at rest in words, for a namespace."""
        return AT_REST_LAYOUT if self.scale_dtype is None else f"{AT_REST_LAYOUT};layer,token,head"

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return sum(plane.nbytes for plane in self.planes)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers, with their scales."""
        return self.block_bytes // self.block_tokens

    def views(self, data: memoryview | bytearray) -> list[torch.Tensor]:
        """Return the planes of a block at rest as views of ``data`` (``block_bytes``, a writable buffer)."""
        views, start = list[torch.Tensor](), 0
        for plane in self.planes:
            numbers = torch.frombuffer(data, dtype=torch.uint8, count=plane.nbytes, offset=start)
            views.append(numbers.view(plane.dtype).view(plane.dimensions))
            start += plane.nbytes
        return views
