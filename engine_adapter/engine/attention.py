"""Attention over the paged pool, called by transformers' own model code.

In each layer the model hands its fresh keys and values to ``PagedCache.update``, which writes them
into the pool and answers with the pool's layer, and then calls the attention function registered
under ``ATTENTION_NAME``, which passes queries and that layer to the step's ``Attend``. So attention
reads K and V from the pool alone, and computed and reloaded tokens see the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from engine_adapter.engine.kv_forms import Kept, PoolLayer

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

    @property
    def is_decode(self) -> bool:
        """Whether this is a single token."""
        return self.end - self.start == 1


class Attend(Protocol):
    """Attention of one step, the same in every layer."""

    def __call__(self, query: torch.Tensor, keys: Kept, values: Kept, scaling: float) -> torch.Tensor:
        """Attend causally with each sequence's queries to its own keys and values.

        ``query`` is ``[1, num_heads, rows, head_dim]``, ``keys`` and ``values`` are one layer of the
        pool in its form. Returns ``[1, rows, num_heads, head_dim]``.
        """
        ...


class AttentionBackend(Protocol):
    """One way to compute attention over the pool."""

    name: str

    def plan(
        self, spans: Sequence[Span], block_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> Attend:
        """Prepare one step, whose queries are of ``dtype``: what all layers share is made here, once."""
        ...


class PagedCache:
    """The cache object of one step: where its tokens are written in the pool."""

    def __init__(self, layers: Sequence[PoolLayer], slots: torch.Tensor) -> None:
        self._layers = layers
        self._slots = slots

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_args: object, **_kwargs: object
    ) -> tuple[Kept, Kept]:
        """Write ``[1, num_kv_heads, rows, head_dim]`` and return the pool's layer to attend to."""
        layer = self._layers[layer_idx]
        layer.write(self._slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
        return layer.keys, layer.values


def register_attention() -> None:
    """Make ``ATTENTION_NAME`` known to transformers; harmless when it is already."""
    AttentionInterface.register(ATTENTION_NAME, _paged_attention)


def _paged_attention(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: Kept,
    value: Kept,
    _mask: None,
    scaling: float,
    *,
    attend: Attend,
    **_kwargs: Any,
) -> tuple[torch.Tensor, None]:
    return attend(query, key, value, scaling), None
