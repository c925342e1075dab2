"""The forms in which the pool keeps keys and values: plain numbers, or 8 bits and scales (int8, fp8).

Every token is written once, as it is computed, and attention reads what was written. So a block that comes
back from a tier is the one that was computed, bit for bit, in every form.

In 8 bits a number is a code times a scale. A few channels of the keys are far larger than the others, and
are so for every token: each channel of a head has a scale of its own. Values have no such channels: each
token has a scale for each head, taken from the token itself and kept beside it. The split is that of KIVI
(Liu et al., 2024, arXiv 2402.02750) and KVQuant (Hooper et al., 2024, arXiv 2401.18079); the latter
measures the scales of the keys ahead, as ``key_scales`` does. A key beyond its channel's range is clamped
and counted; one that is not a number is kept as 0 and counted too. Values of a token and head among which
one is not finite come back as not a number, all of them, and no other token is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

import torch

from backends.device import DevicePool
from backends.kv_shape import KVShape, Layout
from kvstore.errors import ConfigError, InvariantError, one_line

FP8 = torch.float8_e4m3fn
SCALE_DTYPE = torch.bfloat16
"""Of the values' scales: as wide a range as fp32, and its rounding is less than half a step of int8."""
LARGEST_CODE = {torch.int8: 127.0, FP8: 448.0}
"""The largest code of each scaled form; the smallest is its negative."""

_VERSION = 1
_FP8_OVER_HALF = 2.0**8
_LEAST_SCALE = torch.finfo(SCALE_DTYPE).tiny


@dataclass(frozen=True, slots=True)
class ScaledPlane:
    """Keys or values of one layer in 8 bits.

    ``codes`` are ``[slots, num_kv_heads, head_dim]``; ``scales`` are ``[slots, num_kv_heads, 1]`` if they are
    by token, else ``[1, num_kv_heads, head_dim]``.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    are_by_token: bool

    def read(self, slots: slice | torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the numbers of ``slots`` in ``dtype``."""
        # Bytes, because torch selects them on every device.
        codes = _take(self.codes.view(torch.uint8), slots).view(self.codes.dtype)
        scales = _take(self.scales, slots) if self.are_by_token else self.scales
        if codes.dtype == FP8 and not codes.is_cuda:
            return _halves_of_fp8(codes).to(dtype).mul_((scales * _FP8_OVER_HALF).to(dtype))
        return codes.to(dtype).mul_(scales.to(dtype))

    def write(self, slots: torch.Tensor, codes: torch.Tensor) -> None:
        """Put ``codes`` of ``[tokens, num_kv_heads, head_dim]`` into ``slots``."""
        self.codes.view(torch.uint8).index_copy_(0, slots, codes.contiguous().view(torch.uint8))


Kept = torch.Tensor | ScaledPlane
"""Keys or values of one layer as the pool keeps them; plain ones are ``[slots, num_kv_heads, head_dim]``."""


class PoolLayer(Protocol):
    """One layer of the pool."""

    @property
    def keys(self) -> Kept:
        """Keys of all slots."""
        ...

    @property
    def values(self) -> Kept:
        """Values of all slots."""
        ...

    def write(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Keep ``[tokens, num_kv_heads, head_dim]`` in ``slots``."""
        ...


@dataclass(frozen=True, slots=True)
class PlainLayer:
    """A layer whose keys and values are kept as they are, rounded to the pool's dtype."""

    keys: torch.Tensor
    values: torch.Tensor

    def write(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.keys.index_copy_(0, slots, keys.to(self.keys.dtype).contiguous())
        self.values.index_copy_(0, slots, values.to(self.values.dtype).contiguous())


@dataclass(frozen=True, slots=True)
class ScaledLayer:
    """A layer in 8 bits. ``num_clamped`` counts keys beyond their channel's range, of all layers together."""

    keys: ScaledPlane
    values: ScaledPlane
    num_clamped: torch.Tensor

    def write(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        dtype = self.keys.codes.dtype
        self.keys.write(slots, encode(keys, self.keys.scales, dtype))
        is_in_range = keys.float().abs() <= self.keys.scales * LARGEST_CODE[dtype]
        self.num_clamped.add_(is_in_range.logical_not_().sum())
        scales = value_scales(values, dtype)
        self.values.write(slots, encode(values, scales, dtype))
        self.values.scales.index_copy_(0, slots, scales)


def encode(numbers: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the codes of ``numbers``: the nearest ones, of what is too large the last, else 0."""
    largest = LARGEST_CODE[dtype]
    scaled = (numbers.float() / scales).clamp_(-largest, largest).nan_to_num_(0.0)
    return (scaled.round_() if dtype == torch.int8 else scaled).to(dtype)


def value_scales(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the scale of each token's and head's values, ``[tokens, num_kv_heads, 1]``."""
    largest = values.float().abs().amax(-1, keepdim=True)
    return (largest / LARGEST_CODE[dtype]).clamp_min_(_LEAST_SCALE).to(SCALE_DTYPE)


def read(kept: Kept, slots: slice | torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return keys or values of ``slots`` in ``dtype``: ``[tokens, num_kv_heads, head_dim]``, maybe a view."""
    return kept.read(slots, dtype) if isinstance(kept, ScaledPlane) else _take(kept, slots).to(dtype)


def pool_layers(
    pool: DevicePool, key_scales: torch.Tensor | None, num_clamped: torch.Tensor
) -> Sequence[PoolLayer]:
    """Return the layers of ``pool`` to write and to read.

    ``key_scales`` are ``[num_layers, num_kv_heads, head_dim]`` where the pool's form has them; clamped keys
    are counted in ``num_clamped``.
    """
    if pool.value_scales is None:
        return [PlainLayer(keys, values) for keys, values in pool.layers]
    if key_scales is None:
        raise InvariantError("a pool in 8 bits needs the scales of its keys")
    by_layer = zip(pool.layers, pool.value_scales, key_scales, strict=True)
    return [
        ScaledLayer(
            ScaledPlane(keys, channels[None], are_by_token=False),
            ScaledPlane(values, tokens[0], are_by_token=True),
            num_clamped,
        )
        for (keys, values), tokens, channels in by_layer
    ]


def layer_of(shape: KVShape, keys: torch.Tensor, values: torch.Tensor) -> PoolLayer:
    """Return a layer of its own, in the form of ``shape``, that keeps ``keys`` and ``values`` in its slots.

    For trying what reads a pool; these keys are within their range.
    """
    if shape.scale_dtype is None:
        return PlainLayer(keys.to(shape.dtype), values.to(shape.dtype))
    codes = torch.zeros((2, *keys.shape), dtype=torch.uint8, device=keys.device).view(shape.dtype)
    scales = keys.abs().amax(0, keepdim=True) * 1.01 / LARGEST_CODE[shape.dtype]
    tokens = torch.zeros((*keys.shape[:2], 1), dtype=shape.scale_dtype, device=keys.device)
    layer = ScaledLayer(
        ScaledPlane(codes[0], scales, are_by_token=False),
        ScaledPlane(codes[1], tokens, are_by_token=True),
        torch.zeros((), dtype=torch.int64, device=keys.device),
    )
    layer.write(torch.arange(len(keys), device=keys.device), keys, values)
    return layer


def layout_for(wanted: Layout, shape: KVShape) -> Layout:
    """Return the ``wanted`` layout of a pool, unless the form of ``shape`` has another one alone."""
    return wanted if shape.scale_dtype is None else "layer-first"


def scale_dtype_of(dtype: torch.dtype) -> torch.dtype | None:
    """Return the dtype of the values' scales beside numbers of ``dtype``; ``None``: it is a plain form."""
    return SCALE_DTYPE if dtype in LARGEST_CODE else None


def form_name(shape: KVShape, key_scales: torch.Tensor | None) -> str:
    """Return all that decides the numbers of a form beside its dtype and layout, for a namespace."""
    if key_scales is None:
        return "plain"
    digest = blake2b(key_scales.cpu().numpy().tobytes(), digest_size=16, person=b"prefixd-scales")
    return f"scaled-{_VERSION};keys by channel {digest.hexdigest()};values by token {shape.scale_dtype}"


def require_convertible(dtype: torch.dtype, device: torch.device) -> None:
    """Raise ``ConfigError`` unless ``device`` converts numbers to ``dtype`` and back."""
    wanted = torch.tensor([-2.0, 0.0, 96.0])
    try:
        found = wanted.to(device).to(dtype).view(torch.uint8).view(dtype).float().cpu()
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise ConfigError("kv_dtype", f"{device} does not convert {dtype}: {one_line(error)}") from error
    if not torch.equal(found, wanted):
        raise ConfigError("kv_dtype", f"{device} converts {dtype} wrongly: {found.tolist()}")


def _take(numbers: torch.Tensor, slots: slice | torch.Tensor) -> torch.Tensor:
    return numbers[slots] if isinstance(slots, slice) else numbers.index_select(0, slots)


def _halves_of_fp8(codes: torch.Tensor) -> torch.Tensor:
    """Return fp16 numbers that are ``_FP8_OVER_HALF`` times smaller, by moving bits.

    torch itself converts e4m3 number by number on a CPU, several times more slowly. Its codes for what is no
    number, which ``encode`` never gives, are taken for 480.
    """
    # Exponent and mantissa go to the same places of fp16, whose exponent has one bit more: it is cleared.
    bits = codes.view(torch.int8).to(torch.int16).bitwise_left_shift_(7).bitwise_and_(~0x4000)
    return bits.view(torch.float16)
