"""torch's scaled dot product attention over the pool: right on any device, the choice on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

from backends.kv_shape import Layout
from engine_adapter.engine.attention import Attend, Span
from engine_adapter.engine.kv_forms import Kept, read
from engine_adapter.engine.softcap import capped_attention

# On a CPU, copying short sequences together costs less than one call each; from about 1,000 tokens
# on, reading each where it lies does.
CPU_GATHER_TOKENS = 512


class SdpaAttention:
    """Sequence by sequence, on a plain view of the pool where its blocks are one run.

    Sequences that decode and see up to ``gather_tokens`` are copied side by side instead and
    attended to in one call. Only keys that a window lets a query see are read.
    """

    name = "sdpa"
    layout: Layout = "layer-first"

    def __init__(self, gather_tokens: int = CPU_GATHER_TOKENS) -> None:
        self._gather_tokens = gather_tokens

    def plan(
        self, spans: Sequence[Span], block_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> Attend:
        layout = _Layout(spans, block_tokens, dtype, device)
        return _Step(cache(partial(_parts, layout, self._gather_tokens)), max(span.end for span in spans))


@dataclass(frozen=True, slots=True)
class _Layout:
    """What the parts of a step are made of."""

    spans: Sequence[Span]
    block_tokens: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class _Step:
    """``parts_for`` makes the parts for a window, with all masks or the needed ones, and keeps them."""

    parts_for: Callable[[int | None, bool], Sequence[_Sequence | _Gathered]]
    longest: int

    def __call__(
        self,
        query: torch.Tensor,
        keys: Kept,
        values: Kept,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        reaching = None if window is None or window >= self.longest else window
        parts = self.parts_for(reaching, softcap is not None)
        if len(parts) == 1:
            return parts[0].attend(query, keys, values, scaling, softcap)
        _, num_heads, num_rows, dim = query.shape
        out = query.new_empty(1, num_rows, num_heads, dim)
        for part in parts:
            out[:, part.rows] = part.attend(query[:, :, part.rows], keys, values, scaling, softcap)
        return out


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One sequence: ``runs`` are the slots of the keys that its queries see."""

    rows: slice
    runs: Sequence[slice]
    mask: torch.Tensor | None

    def attend(
        self,
        query: torch.Tensor,
        keys: Kept,
        values: Kept,
        scaling: float,
        softcap: float | None,
    ) -> torch.Tensor:
        key, value = self._read(keys, query.dtype), self._read(values, query.dtype)
        if query.shape[2] == 1:
            return _attend_single(query.transpose(1, 2), key, value, None, scaling, softcap)
        if softcap is not None:
            return capped_attention(query, key, value, self.mask, scaling, softcap).transpose(1, 2)
        out = scaled_dot_product_attention(
            query, key, value, self.mask, is_causal=self.mask is None, scale=scaling, enable_gqa=True
        )
        return out.transpose(1, 2)

    def _read(self, layer: Kept, dtype: torch.dtype) -> torch.Tensor:
        runs = [read(layer, run, dtype) for run in self.runs]
        tokens = runs[0] if len(runs) == 1 else torch.cat(runs)
        return tokens.transpose(0, 1).unsqueeze(0)


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Several sequences of one query each: ``slots`` of their keys and a mask over the padding."""

    rows: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor

    def attend(
        self,
        query: torch.Tensor,
        keys: Kept,
        values: Kept,
        scaling: float,
        softcap: float | None,
    ) -> torch.Tensor:
        key, value = self._read(keys, query.dtype), self._read(values, query.dtype)
        out = _attend_single(query.permute(2, 0, 1, 3), key, value, self.mask, scaling, softcap)
        return out.transpose(0, 1)

    def _read(self, layer: Kept, dtype: torch.dtype) -> torch.Tensor:
        tokens = read(layer, self.slots.view(-1), dtype)
        return tokens.view(*self.slots.shape, *tokens.shape[1:]).transpose(1, 2)


def _attend_single(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    softcap: float | None,
) -> torch.Tensor:
    """Attend with one query per sequence: ``[n, 1, num_heads, dim]`` in and out."""
    # Heads that share keys stand in as queries of one head: each key is then read once, not per head.
    grouped = query.reshape(len(query), key.shape[1], -1, key.shape[3])
    if softcap is not None:
        return capped_attention(grouped, key, value, mask, scaling, softcap).reshape(query.shape)
    return scaled_dot_product_attention(grouped, key, value, mask, scale=scaling).reshape(query.shape)


def _parts(
    layout: _Layout, gather_tokens: int, window: int | None, has_masks: bool
) -> list[_Sequence | _Gathered]:
    short = [
        span
        for span in layout.spans
        if span.is_decode and span.end - _first_seen(span, window) <= gather_tokens
    ]
    gathered = short if len(short) > 1 else []
    parts: list[_Sequence | _Gathered] = [
        _sequence(layout, span, window, has_masks) for span in layout.spans if span not in gathered
    ]
    if gathered:
        parts.append(_gathered(layout, gathered, window))
    return parts


def _first_seen(span: Span, window: int | None) -> int:
    """Return the first position that a query of ``span`` sees."""
    return 0 if window is None else max(0, span.start + 1 - window)


def _sequence(layout: _Layout, span: Span, window: int | None, has_mask: bool) -> _Sequence:
    is_plain = span.start == 0 and (window is None or window >= span.end) and not has_mask
    mask = None if span.is_decode or is_plain else _mask(layout, span, window)
    return _Sequence(span.rows, _runs(span, _first_seen(span, window), layout.block_tokens), mask)


def _runs(span: Span, first: int, block_tokens: int) -> list[slice]:
    """Return the slots of the positions from ``first`` to the span's end."""
    blocks = span.blocks[first // block_tokens : -(-span.end // block_tokens)]
    runs = [[begin * block_tokens, end * block_tokens] for begin, end in block_runs(blocks)]
    runs[0][0] += first % block_tokens
    runs[-1][1] -= -span.end % block_tokens
    return [slice(begin, end) for begin, end in runs]


def _mask(layout: _Layout, span: Span, window: int | None) -> torch.Tensor:
    # SDPA's own causal flag aligns the first query with the first key; here the last ones meet.
    first = _first_seen(span, window)
    shape = span.end - span.start, span.end - first
    mask = torch.full(shape, -torch.inf, dtype=layout.dtype, device=layout.device)
    column = span.start - first
    if window is None:
        return mask.triu_(column + 1)[None, None]
    return mask.triu(column + 1).add_(mask.tril_(column - window))[None, None]


def _gathered(layout: _Layout, spans: Sequence[Span], window: int | None) -> _Gathered:
    blocks = pad_sequence([torch.tensor(span.blocks) for span in spans], batch_first=True)
    firsts = torch.tensor([_first_seen(span, window) for span in spans])[:, None]
    positions = firsts + torch.arange(max(span.end - _first_seen(span, window) for span in spans))
    is_padding = positions >= torch.tensor([span.end for span in spans])[:, None]
    # Padding reads a token of the sequence itself: a masked NaN of another's would still be a NaN.
    positions = torch.where(is_padding, firsts, positions)
    slots = blocks.gather(1, positions // layout.block_tokens) * layout.block_tokens
    mask = torch.zeros(slots.shape, dtype=layout.dtype).masked_fill_(is_padding, -torch.inf)
    return _Gathered(
        rows=torch.tensor([span.begin for span in spans], device=layout.device),
        slots=(slots + positions % layout.block_tokens).to(layout.device),
        mask=mask[:, None, None].to(layout.device),
    )


def block_runs(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """Return the maximal runs of consecutive ``blocks`` as half-open (first, last) pairs."""
    cuts = [0, *(i for i in range(1, len(blocks)) if blocks[i] != blocks[i - 1] + 1), len(blocks)]
    return [(blocks[first], blocks[last - 1] + 1) for first, last in pairwise(cuts)]
