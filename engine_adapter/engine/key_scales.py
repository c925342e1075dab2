"""Measures how large the keys of each channel become, before the first of them is kept in 8 bits.

A token is written once, so the scale of a channel has to stand before the first token comes, and a block
must not depend on what came before it. So the scales belong to the model: it reads a sample that is the same
in every process, and the largest key of each channel, with a margin, becomes the end of its range. The sample
is a text, or for a model without a tokenizer made up, which needs a larger margin.
RoPE turns pairs of channels into each other, slowly for some, so that the sample is read at several
places of the context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import torch
from transformers import PreTrainedModel

from backends.kv_shape import KVShape
from engine_adapter.engine.attention import PagedCache, Span
from engine_adapter.engine.kv_forms import FP8, LARGEST_CODE, PoolLayer
from engine_adapter.engine.sample_text import CODE, PROSE
from engine_adapter.engine.sdpa import SdpaAttention
from kvstore.errors import ModelRefusedError

Encode = Callable[[str], Sequence[int]]

_SAMPLE_TOKENS = 512
_NUM_PLACES = 4
_SEED = 2026
_SHARE_IN_ROWS, _SHARE_OF_ECHOES, _ECHO_TOKENS = 0.1, 0.05, 20
# In fp8 a wide range costs next to nothing: small numbers are as exact as large ones.
_MARGIN = {torch.int8: 1.35, FP8: 4.0}
_MARGIN_IF_MADE_UP = {torch.int8: 1.75, FP8: 4.0}
# Scales on so coarse a grid seldom differ where rounding does: on other machines, with more threads.
_STEPS_PER_DOUBLING = 4
_LEAST_RANGE = 1e-30


@torch.inference_mode()
def measure_key_scales(
    model: PreTrainedModel, shape: KVShape, context_tokens: int, vocab_size: int, encode: Encode | None = None
) -> torch.Tensor:
    """Return fp32 scales ``[num_layers, num_kv_heads, head_dim]`` for keys in the form of ``shape``.

    ``model`` runs our attention, ``encode`` makes tokens of text. Blocks for four short prefills. Raises
    ``ModelRefusedError`` when it computes keys that are no numbers.
    """
    num_tokens = min(_SAMPLE_TOKENS, context_tokens)
    tokens, margins = _text(num_tokens, vocab_size, encode) if encode else [], _MARGIN
    if not tokens:
        tokens, margins = _sample(num_tokens, vocab_size), _MARGIN_IF_MADE_UP
    seen = torch.zeros((shape.num_layers, shape.num_kv_heads, shape.head_dim), device=model.device)
    layers = [_WatchedLayer(largest) for largest in seen]
    for place in range(_NUM_PLACES):
        _read_sample(model, tokens, (context_tokens - num_tokens) * place // (_NUM_PLACES - 1), layers)
    if not seen.isfinite().all():
        raise ModelRefusedError(model.config.model_type, "it computes keys that are not finite")
    return _end_of_range(seen * margins[shape.dtype]) / LARGEST_CODE[shape.dtype]


class _WatchedLayer:
    """Stands for a layer of the pool: keeps the tokens of one step, and how large keys have been."""

    def __init__(self, largest: torch.Tensor) -> None:
        self.keys = self.values = torch.empty(0)
        self._largest = largest

    def write(self, _slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.keys, self.values = keys, values
        torch.maximum(self._largest, keys.abs().amax(0).float(), out=self._largest)


def _text(num_tokens: int, vocab_size: int, encode: Encode) -> Sequence[int]:
    """Return tokens of prose and of code, half of each; none where the tokenizer is not the model's."""
    num_prose = num_tokens // 2
    tokens = [*encode(PROSE)[:num_prose], *encode(CODE)[: num_tokens - num_prose]]
    return tokens if len(tokens) == num_tokens and max(tokens) < vocab_size else []


def _sample(num_tokens: int, vocab_size: int) -> list[int]:
    """Return tokens as a text has them: low ids more often, tokens in a row, and passages again.

    Tokens of all ids alike would leave keys of texts out that are several times as large.
    """
    dice, tokens = Random(_SEED), list[int]()  # noqa: S311 - a sample, not a secret
    while len(tokens) < num_tokens:
        token = int(vocab_size ** dice.random()) - 1
        tokens += [token] * (dice.randrange(2, 12) if dice.random() < _SHARE_IN_ROWS else 1)
        if dice.random() < _SHARE_OF_ECHOES:
            tokens += tokens[-_ECHO_TOKENS:]
    return tokens[:num_tokens]


def _read_sample(
    model: PreTrainedModel, tokens: Sequence[int], start: int, layers: Sequence[PoolLayer]
) -> None:
    num_tokens, device = len(tokens), model.device
    span = Span(begin=0, start=0, end=num_tokens, blocks=(0,))
    model(
        input_ids=torch.tensor([tokens], device=device),
        position_ids=torch.arange(start, start + num_tokens, device=device)[None],
        cache=PagedCache(layers, torch.arange(num_tokens, device=device)),
        use_cache=True,
        logits_to_keep=1,
        attend=SdpaAttention().plan([span], num_tokens, model.dtype, device),
    )


def _end_of_range(largest: torch.Tensor) -> torch.Tensor:
    """Return the range of each channel: at least ``largest``, on a grid, and not 0."""
    doublings = largest.double().clamp_min(_LEAST_RANGE).log2()
    return (doublings * _STEPS_PER_DOUBLING).ceil().div(_STEPS_PER_DOUBLING).exp2().float()
