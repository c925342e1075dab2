"""The true shape of a block's bytes, where its namespace's manifest tells it."""

from __future__ import annotations

import json
import math
from typing import NamedTuple

from kvstore.namespace import AT_REST_LAYOUT, Namespace

_DTYPES = {"float32": ("F32", 4), "bfloat16": ("BF16", 2), "float16": ("F16", 2)}
_SIZES = {"U8": 1, **dict(_DTYPES.values())}


class Shape(NamedTuple):
    """A tensor's dtype, as safetensors names it, and its dimensions, outermost first."""

    dtype: str
    dimensions: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.dimensions) * self.number_bytes

    @property
    def number_bytes(self) -> int:
        """Bytes of one number in it."""
        return _SIZES[self.dtype]


def shape_of(namespace: Namespace, nbytes: int) -> Shape:
    """Return the shape of a block: ``[layers, 2 (K, V), tokens, heads, dim]``, or plain bytes.

    Bytes for forms that are no plain numbers, and where what the manifest says does not come to ``nbytes``.
    """
    plain = Shape("U8", (nbytes,))
    if (
        namespace.kv_form != "plain"
        or namespace.layout != AT_REST_LAYOUT
        or namespace.kv_dtype not in _DTYPES
    ):
        return plain
    told = _dimensions(namespace)
    shape = Shape(_DTYPES[namespace.kv_dtype][0], told) if told else plain
    return shape if shape.nbytes == nbytes else plain


def _dimensions(namespace: Namespace) -> tuple[int, ...] | None:
    config = json.loads(namespace.model_config)
    if not isinstance(config, dict):
        return None
    layers, queries = config.get("num_hidden_layers"), config.get("num_attention_heads")
    heads = config.get("num_key_value_heads") or queries
    dim = config.get("head_dim") or _quotient(config.get("hidden_size"), queries)
    heads = _quotient(heads, namespace.tp_size)
    told = (layers, 2, namespace.block_tokens, heads, dim)
    counts = tuple(number for number in told if type(number) is int and number > 0)
    return counts if len(counts) == len(told) else None


def _quotient(whole: object, parts: object) -> int | None:
    if isinstance(whole, int) and isinstance(parts, int) and parts > 0 and whole % parts == 0:
        return whole // parts
    return None
