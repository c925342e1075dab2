"""torch's scaled dot product attention over the pool: right on any device, the choice on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

from engine_adapter.engine.attention import Attend, Span
from engine_adapter.engine.kv_forms import Kept, read

# On a CPU, copying short sequences together costs less than one call each; from about 1,000 tokens
# on, reading each where it lies does.
CPU_GATHER_TOKENS = 512


class SdpaAttention:
    """Sequence by sequence, on a plain view of the pool where its blocks are one run.

    Sequences that decode and hold up to ``gather_tokens`` are copied side by side instead and
    attended to in one call.
    """

    name = "sdpa"

    def __init__(self, gather_tokens: int = CPU_GATHER_TOKENS) -> None:
        self._gather_tokens = gather_tokens

    def plan(
        self, spans: Sequence[Span], block_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> Attend:
        short = [span for span in spans if span.is_decode and span.end <= self._gather_tokens]
        gathered = short if len(short) > 1 else []
        parts: list[_Sequence | _Gathered] = [
            _sequence(span, block_tokens, dtype, device) for span in spans if span not in gathered
        ]
        if gathered:
            parts.append(_gathered(gathered, block_tokens, dtype, device))
        return _Step(parts)


@dataclass(frozen=True, slots=True)
class _Step:
    parts: Sequence[_Sequence | _Gathered]

    def __call__(self, query: torch.Tensor, keys: Kept, values: Kept, scaling: float) -> torch.Tensor:
        if len(self.parts) == 1:
            return self.parts[0].attend(query, keys, values, scaling)
        _, num_heads, num_rows, dim = query.shape
        out = query.new_empty(1, num_rows, num_heads, dim)
        for part in self.parts:
            out[:, part.rows] = part.attend(query[:, :, part.rows], keys, values, scaling)
        return out


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One sequence: ``runs`` are the slots of its blocks, ``end`` of which are in use."""

    rows: slice
    runs: Sequence[slice]
    end: int
    mask: torch.Tensor | None

    def attend(self, query: torch.Tensor, keys: Kept, values: Kept, scaling: float) -> torch.Tensor:
        key, value = self._read(keys, query.dtype), self._read(values, query.dtype)
        if query.shape[2] == 1:
            return _attend_single(query.transpose(1, 2), key, value, None, scaling)
        out = scaled_dot_product_attention(
            query, key, value, self.mask, is_causal=self.mask is None, scale=scaling, enable_gqa=True
        )
        return out.transpose(1, 2)

    def _read(self, layer: Kept, dtype: torch.dtype) -> torch.Tensor:
        runs = [read(layer, run, dtype) for run in self.runs]
        tokens = runs[0] if len(runs) == 1 else torch.cat(runs)
        return tokens[: self.end].transpose(0, 1).unsqueeze(0)


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Several sequences of one query each: ``slots`` of their keys and a mask over the padding."""

    rows: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor

    def attend(self, query: torch.Tensor, keys: Kept, values: Kept, scaling: float) -> torch.Tensor:
        key, value = self._read(keys, query.dtype), self._read(values, query.dtype)
        out = _attend_single(query.permute(2, 0, 1, 3), key, value, self.mask, scaling)
        return out.transpose(0, 1)

    def _read(self, layer: Kept, dtype: torch.dtype) -> torch.Tensor:
        tokens = read(layer, self.slots.view(-1), dtype)
        return tokens.view(*self.slots.shape, *tokens.shape[1:]).transpose(1, 2)


def _attend_single(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Attend with one query per sequence: ``[n, 1, num_heads, dim]`` in and out."""
    # Heads that share keys stand in as queries of one head: each key is then read once, not per head.
    grouped = query.reshape(len(query), key.shape[1], -1, key.shape[3])
    return scaled_dot_product_attention(grouped, key, value, mask, scale=scaling).reshape(query.shape)


def _sequence(span: Span, block_tokens: int, dtype: torch.dtype, device: torch.device) -> _Sequence:
    runs = [slice(first * block_tokens, last * block_tokens) for first, last in block_runs(span.blocks)]
    mask = None if span.is_decode or span.start == 0 else _causal_mask(span, dtype, device)
    return _Sequence(span.rows, runs, span.end, mask)


def _gathered(
    spans: Sequence[Span], block_tokens: int, dtype: torch.dtype, device: torch.device
) -> _Gathered:
    blocks = pad_sequence([torch.tensor(span.blocks) for span in spans], batch_first=True)
    slots = (blocks[:, :, None] * block_tokens + torch.arange(block_tokens)).flatten(1)
    ends = torch.tensor([span.end for span in spans])
    slots = slots[:, : int(ends.max())]
    is_padding = torch.arange(slots.shape[1]) >= ends[:, None]
    # Padding reads the sequence's own first token: a masked NaN of another's would still be a NaN.
    slots = torch.where(is_padding, slots[:, :1], slots)
    mask = torch.zeros(slots.shape, dtype=dtype).masked_fill_(is_padding, -torch.inf)
    return _Gathered(
        rows=torch.tensor([span.begin for span in spans], device=device),
        slots=slots.to(device),
        mask=mask[:, None, None].to(device),
    )


def _causal_mask(span: Span, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    # SDPA's own causal flag aligns the first query with the first key; here the last ones meet.
    num_queries = span.end - span.start
    mask = torch.full((num_queries, span.end), -torch.inf, dtype=dtype, device=device)
    return mask.triu_(span.start + 1)


def block_runs(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """Return the maximal runs of consecutive ``blocks`` as half-open (first, last) pairs."""
    cuts = [0, *(i for i in range(1, len(blocks)) if blocks[i] != blocks[i - 1] + 1), len(blocks)]
    return [(blocks[first], blocks[last - 1] + 1) for first, last in pairwise(cuts)]
