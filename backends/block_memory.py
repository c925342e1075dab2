"""The numbers of a pool's blocks on a device, in one of two layouts, and copies of them.

::

    layer-first   [layer][K, V][block 0 .. block n][token]    consecutive blocks are a plain view
    block-first   [block][layer][K, V][token]                 a block is one piece, its bytes at rest
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from backends.copies import Copies, Copy
from backends.kv_shape import KVShape, Layout
from kvstore.errors import InvariantError


class BlockMemory:
    """Memory for ``num_blocks`` blocks of ``shape``.

    ``keys_and_values`` is ``[num_layers, 2, num_blocks * block_tokens, num_kv_heads, head_dim]`` layer-first,
    and ``[num_blocks, num_layers, 2, block_tokens, num_kv_heads, head_dim]`` block-first. ``value_scales``,
    in forms that have them, are ``[num_layers, 1, num_blocks * block_tokens, num_kv_heads, 1]``: these
    forms are layer-first alone. Not thread-safe.
    """

    def __init__(
        self, shape: KVShape, num_blocks: int, device: torch.device, layout: Layout, copies: Copies
    ) -> None:
        if layout == "block-first" and len(shape.planes) > 1:
            raise InvariantError("a form with scales has no block-first layout")
        self.layout = layout
        self._shape = shape
        self._num_blocks = num_blocks
        self._copies = copies
        self._planes = [plane.zeros(num_blocks, device, layout) for plane in shape.planes]
        self.keys_and_values, *scales = self._planes
        self.value_scales = scales[0] if scales else None
        self._loading: dict[int, Copy] = {}  # into blocks, that no computing has been ordered behind yet

    @property
    def pages_per_block(self) -> int:
        """Block ``b`` is page ``b * pages_per_block`` of each of ``layers``."""
        return 1 if self.layout == "layer-first" else 2 * self._shape.num_layers

    def layers(self) -> Sequence[tuple[torch.Tensor, torch.Tensor]]:
        """Return each layer's keys and values, both ``[slots, num_kv_heads, head_dim]``, of one token stride.

        Cut into pages of ``block_tokens`` slots. Block-first the pages between are those of other layers.
        """
        if self.layout == "layer-first":
            return [(layer[0], layer[1]) for layer in self.keys_and_values]
        page = self._shape.block_tokens
        slots = self.keys_and_values.view(-1, *self.keys_and_values.shape[-2:])
        num_slots = ((self._num_blocks - 1) * self.pages_per_block + 1) * page
        sides = [slots[at * page : at * page + num_slots] for at in range(self.pages_per_block)]
        return list(zip(sides[::2], sides[1::2], strict=True))

    def read(self, block: int, out: memoryview) -> Copy:
        """Begin to copy ``block`` into ``out``, once it is loaded and computed."""
        self.order_after_loads((block,))
        return self._copies.out(self._shape.views(out), self._numbers(block))

    def write(self, block: int, data: memoryview) -> Copy:
        """Begin to copy ``data`` into ``block``."""
        copy = self._copies.into(self._numbers(block), self._shape.views(data))
        if not copy.done():
            self._loading[block] = copy
        return copy

    def copy(self, source: int, target: int) -> None:
        """Copy all of one block into another, in the order of what is computed."""
        self.order_after_loads((source, target))
        for theirs, ours in zip(self._numbers(source), self._numbers(target), strict=True):
            ours.copy_(theirs)

    def order_after_loads(self, blocks: Iterable[int]) -> None:
        """Let all that is computed from now on begin after the loads into ``blocks``; never blocks."""
        if not self._loading:
            return
        for block in self._loading.keys() & set(blocks):
            self._loading.pop(block).precede_compute()
        for block in [block for block, copy in self._loading.items() if copy.done()]:
            del self._loading[block]

    def _numbers(self, block: int) -> list[torch.Tensor]:
        if self.layout == "block-first":
            return [plane[block] for plane in self._planes]
        start, step = block * self._shape.block_tokens, self._shape.block_tokens
        return [plane[:, :, start : start + step] for plane in self._planes]
