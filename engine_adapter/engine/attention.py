"""Attention over the paged pool, called by transformers' own model code.

In each layer the model hands its fresh keys and values to ``PagedCache.update``, which writes them
into the pool and answers with the pool's layer, and then calls the attention function registered
under ``ATTENTION_NAME``, which passes queries and that layer to the step's ``Attend``. So attention
reads K and V from the pool alone, and computed and reloaded tokens see the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from backends.device import DevicePool

ATTENTION_NAME = "prefixd_paged"


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's part of a step.

    ::

        positions   0 ............ start ............ end
                    in the pool    | computed now      |
        rows        begin = first row of the step's batch that is this sequence's
    """

    begin: int
    start: int
    end: int
    blocks: tuple[int, ...]

    @property
    def rows(self) -> slice:
        """The rows of the step's batch."""
        return slice(self.begin, self.begin + self.end - self.start)


class Attend(Protocol):
    """Attention of one step, the same in every layer."""

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Attend causally with each sequence's queries to its own keys and values.

        ``query`` is ``[1, num_heads, rows, head_dim]``, ``keys`` and ``values`` are one layer of the
        pool, ``[slots, num_kv_heads, head_dim]``. Returns ``[1, rows, num_heads, head_dim]``.
        """
        ...


class AttentionBackend(Protocol):
    """One way to compute attention over the pool."""

    name: str

    def plan(self, spans: Sequence[Span], block_tokens: int, device: torch.device) -> Attend:
        """Prepare one step: whatever all layers share is made here, once."""
        ...


class PagedCache:
    """The cache object of one step: where its tokens are written in the pool."""

    def __init__(self, layers: Sequence[tuple[torch.Tensor, torch.Tensor]], slots: torch.Tensor) -> None:
        self._layers = layers
        self._slots = slots

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_args: object, **_kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write ``[1, num_kv_heads, rows, head_dim]`` and return the pool's layer to attend to."""
        keys, values = self._layers[layer_idx]
        keys.index_copy_(0, self._slots, key[0].transpose(0, 1).to(keys.dtype).contiguous())
        values.index_copy_(0, self._slots, value[0].transpose(0, 1).to(values.dtype).contiguous())
        return keys, values


def pool_layers(pool: DevicePool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return keys and values of each layer as views of the pool."""
    return [(layer[0], layer[1]) for layer in pool.keys_and_values]


def register_attention() -> None:
    """Make ``ATTENTION_NAME`` known to transformers; harmless when it is already."""
    AttentionInterface.register(ATTENTION_NAME, _paged_attention)


def _paged_attention(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: None,
    scaling: float,
    *,
    attend: Attend,
    **_kwargs: Any,
) -> tuple[torch.Tensor, None]:
    return attend(query, key, value, scaling), None


class SdpaAttention:
    """torch's SDPA, on any device, sequence by sequence.

    Reads a plain view of the pool where a sequence's blocks are one run, else a copy of its runs.
    """

    name = "sdpa"

    def plan(self, spans: Sequence[Span], block_tokens: int, device: torch.device) -> Attend:
        return _SdpaStep([_SdpaSpan(span, block_tokens, device) for span in spans])


class _SdpaSpan:
    """Where one sequence's keys lie and what each of its queries may see."""

    def __init__(self, span: Span, block_tokens: int, device: torch.device) -> None:
        self.rows = span.rows
        self.num_queries = span.end - span.start
        self._runs = [
            slice(first * block_tokens, last * block_tokens) for first, last in block_runs(span.blocks)
        ]
        self._end = span.end
        self.mask = _causal_mask(span, device) if span.start and self.num_queries > 1 else None

    def read(self, layer: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return this sequence's ``[1, num_kv_heads, end, head_dim]`` of keys or values."""
        runs = [layer[run] for run in self._runs]
        tokens = runs[0] if len(runs) == 1 else torch.cat(runs)
        return tokens[: self._end].to(dtype).transpose(0, 1).unsqueeze(0)


class _SdpaStep:
    def __init__(self, spans: Sequence[_SdpaSpan]) -> None:
        self._spans = spans

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        parts = []
        for span in self._spans:
            part = query[:, :, span.rows]
            key, value = span.read(keys, query.dtype), span.read(values, query.dtype)
            if span.num_queries == 1:
                parts.append(_attend_one(part, key, value, scaling))
            else:
                parts.append(_attend_many(part, key, value, span.mask, scaling))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _attend_one(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float) -> torch.Tensor:
    # The heads that share a KV head stand in as its queries: each key is read once, not per head.
    _, num_heads, _, dim = query.shape
    grouped = query.reshape(1, key.shape[1], num_heads // key.shape[1], dim)
    return scaled_dot_product_attention(grouped, key, value, scale=scaling).reshape(1, 1, num_heads, dim)


def _attend_many(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    out = scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=True
    )
    return out.transpose(1, 2)


def _causal_mask(span: Span, device: torch.device) -> torch.Tensor:
    # SDPA's own causal flag aligns the first query with the first key; here the last ones meet.
    positions = torch.arange(span.end, device=device)
    return positions <= positions[span.start :, None]


def block_runs(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """Return the maximal runs of consecutive ``blocks`` as half-open (first, last) pairs."""
    cuts = [0, *(i for i in range(1, len(blocks)) if blocks[i] != blocks[i - 1] + 1), len(blocks)]
    return [(blocks[first], blocks[last - 1] + 1) for first, last in pairwise(cuts)]
