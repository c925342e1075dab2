"""Attention over the paged pool, called by transformers' own model code.

In each layer the model hands its fresh keys and values to ``PagedCache.update``, which writes them
into the pool and answers with the pool's layer, and then calls the attention function registered
under ``ATTENTION_NAME``, which passes queries and that layer to the step's ``Attend``. So attention
reads K and V from the pool alone, and computed and reloaded tokens see the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from backends.kv_shape import Layout
from engine_adapter.engine.kv_forms import Kept, PoolLayer

ATTENTION_NAME = "prefixd_paged"


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's part of a step.

    ::

        positions   0 ............ start ............ end
                    in the pool    | computed now      |
        rows        begin = first row of the step's batch that is this sequence's

    ``blocks`` are pages: page ``p`` of a layer's keys, and of its values, are the slots from
    ``p * block_tokens`` on. In a pool that is block-first they are not the numbers of blocks.
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


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """What sets a layer's attention apart from another's.

    A query sees the ``window`` last keys, its own included, or all where it is ``None``. Scaled
    scores ``s`` become ``softcap * tanh(s / softcap)`` unless that is ``None``.
    """

    window: int | None = None
    softcap: float | None = None


class Attend(Protocol):
    """Attention of one step, called by every layer."""

    def __call__(
        self,
        query: torch.Tensor,
        keys: Kept,
        values: Kept,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        """Attend causally with each sequence's queries to its own keys and values.

        ``query`` is ``[1, num_heads, rows, head_dim]``, ``keys`` and ``values`` are one layer of the
        pool in its form; ``window`` and ``softcap`` are those of
        ``AttentionKind``. Returns ``[1, rows, num_heads, head_dim]``. Raises ``NotImplementedError``
        for a kind of attention that this backend does not offer.
        """
        ...


class AttentionBackend(Protocol):
    """One way to compute attention over the pool."""

    name: str

    @property
    def layout(self) -> Layout:
        """How the pool that it reads should lie; pages are read in either."""
        ...

    def plan(
        self, spans: Sequence[Span], block_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> Attend:
        """Prepare one step, whose queries are of ``dtype``: what layers share is made once.

        ``spans`` cover the step's rows, in their order.
        """
        ...


class DecodePlan(Attend, Protocol):
    """Attention of steps that decode as many sequences each, over memory that stays where it is.

    Calls launch work on the device alone, so that they can be recorded once and replayed for every step.
    """

    def fill(self, spans: Sequence[Span]) -> None:
        """Prepare the next step, of one query for each of ``spans``."""
        ...


@runtime_checkable
class PlansDecodes(Protocol):
    """An attention backend whose decode steps can be recorded."""

    def decode_plan(self, batch: int, most_pages: int, block_tokens: int, device: torch.device) -> DecodePlan:
        """Prepare for steps of ``batch`` sequences that have at most ``most_pages`` each."""
        ...


@dataclass(frozen=True, slots=True)
class Mask:
    """What transformers' model code gets in place of a mask: no tensor, only what it would hold.

    ``sees`` tells for tensors of query and key positions whether one sees the other.
    """

    window: int | None
    sees: Callable[..., torch.Tensor]


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

    def get_query_offset(self, _layer_idx: int) -> int:
        """Return nothing of use: asked for the size of masks, of which none is made."""
        return 0

    def get_mask_sizes(self, num_queries: int, _layer_idx: int) -> tuple[int, int]:
        """Return nothing of use, likewise."""
        return num_queries, 0


def register_attention() -> None:
    """Make ``ATTENTION_NAME`` known to transformers; harmless when it is already."""
    register_as(ATTENTION_NAME, _paged_attention)


def register_as(name: str, function: Callable[..., tuple[torch.Tensor, None]]) -> None:
    """Make ``function`` known to transformers as an attention whose masks are ``Mask``."""
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, _mask)


def _mask(
    *, mask_function: Callable[..., torch.Tensor], local_size: int | None = None, **_facts: Any
) -> Mask:
    return Mask(local_size, mask_function)


def _paged_attention(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: Kept,
    value: Kept,
    attention_mask: Mask,
    scaling: float,
    *,
    attend: Attend,
    softcap: float | None = None,
    **_kwargs: Any,
) -> tuple[torch.Tensor, None]:
    # The mask has the window in every family; the argument of that name is for kernels without masks.
    return attend(query, key, value, scaling, attention_mask.window, softcap), None
