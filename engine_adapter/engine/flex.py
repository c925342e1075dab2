"""torch's FlexAttention over the pages of the pool: compiled on a GPU, plain arithmetic elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, Self, cast

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from backends.kv_shape import Layout
from engine_adapter.engine.attention import Attend, DecodePlan, Span
from engine_adapter.engine.kv_forms import Kept
from engine_adapter.engine.pages import page_table, pages_of

# Queries of one sequence that share a tile: few where all decode, more for the sake of prompts.
_FEW_ROWS, _MANY_ROWS = 16, 128
_MOST_KEYS_OF_A_TILE = 64
# One for each kind of layer, number of rows in a tile, and size that was seen only once.
_MOST_COMPILED = 64


class FlexAttention:
    """One kernel for the whole batch, which visits each sequence's pages and masks what is not seen.

    The queries of each sequence are padded to the longest of the step. A page must have the same place in
    all sequences that share it, and what a sequence leaves free of its last page is set to zero. On a GPU a
    step of a new kind waits for the compiler, and pages of less than 16 tokens fail in it.
    """

    name = "flex"
    # Its compiled code may count numbers in 32 bits, which all layers of a large pool together exceed.
    layout: Layout = "layer-first"

    def __init__(self) -> None:
        self._compiled = cache(partial(torch.compile, flex_attention))

    def plan(
        self,
        spans: Sequence[Span],
        block_tokens: int,
        dtype: torch.dtype,  # noqa: ARG002 - it masks by itself
        device: torch.device,
    ) -> Attend:
        layout = _Layout.of(spans, block_tokens, device)
        return _Step(layout, self._kernel(device), cache(layout.mask))

    def decode_plan(self, batch: int, most_pages: int, block_tokens: int, device: torch.device) -> DecodePlan:
        longest = [Span(row, 0, 1, (0,) * most_pages) for row in range(batch)]
        return _DecodePlan(_Layout.of(longest, block_tokens, device), self._kernel(device))

    def _kernel(self, device: torch.device) -> Callable[..., Any]:
        if device.type == "cuda":
            return self._run_compiled
        return cast("Callable[..., Any]", flex_attention)

    def _run_compiled(self, *args: Any, **options: Any) -> Any:
        with torch._dynamo.config.patch(recompile_limit=_MOST_COMPILED):
            return self._compiled()(*args, **options)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the queries and keys of a step lie.

    ``table`` are the pages of each sequence, ``starts`` and ``ends`` the positions of its queries, ``rows``
    those of the batch that are padded into ``[sequences, most queries]``, and ``kept`` those of the padded
    ones that are real. ``last_slots`` are those of each sequence's last page, and ``is_free`` tells which of
    them are behind its end.
    """

    block_tokens: int
    table: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    rows: torch.Tensor
    kept: torch.Tensor
    last_slots: torch.Tensor
    is_free: torch.Tensor

    @classmethod
    def of(cls, spans: Sequence[Span], block_tokens: int, device: torch.device) -> Self:
        begins, starts, ends = torch.tensor([(span.begin, span.start, span.end) for span in spans]).unbind(1)
        nums = (ends - starts)[:, None]
        counts = torch.arange(int(nums.max()))
        rows = begins[:, None] + counts.minimum(nums - 1)
        kept = (counts < nums).flatten().nonzero().flatten()
        last_pages = torch.tensor([span.blocks[(span.end - 1) // block_tokens] for span in spans])
        offsets = torch.arange(block_tokens)
        last_slots = (last_pages[:, None] * block_tokens + offsets).flatten()
        is_free = (offsets > (ends[:, None] - 1) % block_tokens).flatten()
        tensors = (page_table(spans), starts, ends, rows, kept, last_slots, is_free)
        return cls(block_tokens, *(tensor.to(device) for tensor in tensors))

    @property
    def tile_rows(self) -> int:
        """How many queries of a sequence are computed together."""
        return _FEW_ROWS if self.rows.shape[1] <= _FEW_ROWS else _MANY_ROWS

    def fill(self, other: _Layout) -> None:
        """Take over what ``other``, of as many queries and at most as many pages, says of its sequences."""
        self.table[:, : other.table.shape[1]].copy_(other.table)
        for name in ("starts", "ends", "last_slots", "is_free"):
            getattr(self, name).copy_(getattr(other, name))

    def mask(self, window: int | None, num_pages: int) -> _Mask:
        """Return which of the pool's pages each tile visits, and which of their keys each query sees."""
        nums, pages = self.visited(window)
        place_of = self.place_of(num_pages)
        block_mask = BlockMask.from_kv_blocks(
            nums[:, None],
            pages[:, None],
            BLOCK_SIZE=(self.tile_rows, self.block_tokens),
            mask_mod=self._sees(window, place_of),
            seq_lengths=(self.rows.shape[1], num_pages * self.block_tokens),
            compute_q_blocks=False,  # only a backward pass needs them
        )
        return _Mask(block_mask, place_of)

    def visited(self, window: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return how many pages and which, ``[sequences, tiles]`` and ``[sequences, tiles, most]``, int32."""
        size, rows = self.block_tokens, self.tile_rows
        num_tiles, most = -(-self.rows.shape[1] // rows), self.table.shape[1]
        begins = self.starts[:, None] + rows * torch.arange(num_tiles, device=self.table.device)
        ends = (begins + rows).minimum(self.ends[:, None])
        firsts = torch.zeros_like(begins) if window is None else (begins - window + 1).clamp(0) // size
        nums = ((ends + size - 1) // size - firsts).where(begins < ends, 0)
        places = firsts[..., None] + torch.arange(most, device=self.table.device)
        pages = self.table.gather(1, places.clamp(max=most - 1).flatten(1).long()).view(places.shape)
        return nums.int(), pages

    def place_of(self, num_pages: int) -> torch.Tensor:
        """Return the place that each page has in the sequences that have it; of other pages anything."""
        table = self.table
        places = torch.arange(table.shape[1], dtype=torch.int32, device=table.device).expand_as(table)
        # What only pads the table names no page: it goes behind the last.
        pages = table.where(places * self.block_tokens < self.ends[:, None], num_pages).long()
        place_of = torch.zeros(num_pages + 1, dtype=torch.int32, device=table.device)
        place_of[pages] = places
        return place_of

    def _sees(self, window: int | None, place_of: torch.Tensor) -> Callable[..., torch.Tensor]:
        table, starts, size = self.table, self.starts, self.block_tokens

        def sees(
            sequence: torch.Tensor, _head: torch.Tensor, row: torch.Tensor, slot: torch.Tensor
        ) -> torch.Tensor:
            page, query = slot // size, starts[sequence] + row
            place = place_of[page]
            key = place * size + slot % size
            is_seen = (table[sequence, place] == page) & (key <= query)
            return is_seen if window is None else is_seen & (key > query - window)

        return sees


class _Mask(NamedTuple):
    """``place_of`` is what the mask looks places up in."""

    blocks: BlockMask
    place_of: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Step:
    """``mask_for`` makes the mask for a window and a number of pages, and keeps it."""

    layout: _Layout
    kernel: Callable[..., Any]
    mask_for: Callable[[int | None, int], _Mask]

    def __call__(
        self,
        query: torch.Tensor,
        keys: Kept,
        values: Kept,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        layout = self.layout
        pages = pages_of(keys, values, layout.block_tokens)
        # A weight of 0 times what is no number is none.
        plain, slots = cast("torch.Tensor", values), layout.last_slots
        plain.index_copy_(0, slots, plain[slots].masked_fill_(layout.is_free[:, None, None], 0))
        key, value = (side.flatten(0, 1).transpose(0, 1).unsqueeze(0) for side in pages)
        out = self.kernel(
            query[0][:, layout.rows].transpose(0, 1),
            key,
            value,
            score_mod=None if softcap is None else _capping(softcap),
            block_mask=self.mask_for(window, len(pages[0])).blocks,
            scale=scaling,
            enable_gqa=True,
            kernel_options={
                # The other kernel, for few queries, cannot be told its tiles.
                "FORCE_USE_FLEX_ATTENTION": True,
                "BLOCK_M": layout.tile_rows,
                "BLOCK_N": min(layout.block_tokens, _MOST_KEYS_OF_A_TILE),
            },
        )
        return cast("torch.Tensor", out).transpose(1, 2).flatten(0, 1)[layout.kept].unsqueeze(0)


class _DecodePlan:
    """A step whose layout and masks stay where they are."""

    def __init__(self, layout: _Layout, kernel: Callable[..., Any]) -> None:
        self._layout = layout
        self._masks: dict[tuple[int | None, int], _Mask] = {}
        self._step = _Step(layout, kernel, self._mask)

    def fill(self, spans: Sequence[Span]) -> None:
        layout = self._layout
        layout.fill(_Layout.of(spans, layout.block_tokens, torch.device("cpu")))
        for (window, num_pages), mask in self._masks.items():
            nums, pages = layout.visited(window)
            mask.blocks.kv_num_blocks.copy_(nums[:, None])
            mask.blocks.kv_indices.copy_(pages[:, None])
            mask.place_of.copy_(layout.place_of(num_pages))

    def __call__(
        self,
        query: torch.Tensor,
        keys: Kept,
        values: Kept,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        return self._step(query, keys, values, scaling, window, softcap)

    def _mask(self, window: int | None, num_pages: int) -> _Mask:
        if (window, num_pages) not in self._masks:
            self._masks[window, num_pages] = self._layout.mask(window, num_pages)
        return self._masks[window, num_pages]


def _capping(softcap: float) -> Callable[..., torch.Tensor]:
    def capped(
        score: torch.Tensor,
        _sequence: torch.Tensor,
        _head: torch.Tensor,
        _row: torch.Tensor,
        _slot: torch.Tensor,
    ) -> torch.Tensor:
        return softcap * torch.tanh(score / softcap)

    return capped
