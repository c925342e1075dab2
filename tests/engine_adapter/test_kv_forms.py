"""Keys and values in 8 bits: how exact they are, what is clamped, and what touches what."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from backends.kv_shape import KVShape
from engine_adapter.engine.kv_forms import (
    FP8,
    LARGEST_CODE,
    SCALE_DTYPE,
    PoolLayer,
    ScaledLayer,
    ScaledPlane,
    encode,
    form_name,
    layer_of,
    read,
    require_convertible,
    value_scales,
)
from kvstore.errors import ConfigError

EIGHT_BITS = [torch.int8, FP8]
PLAIN = [torch.float32, torch.bfloat16, torch.float16]
ALL = slice(None)
NUM_TOKENS, NUM_HEADS, HEAD_DIM = 512, 2, 64
# Relative RMS errors; 0.5 to 0.7 % and 2.6 % are usual for KV of real models.
BOUND = {torch.int8: 0.01, FP8: 0.03}


def shape_of(dtype: torch.dtype) -> KVShape:
    scale_dtype = SCALE_DTYPE if dtype in EIGHT_BITS else None
    return KVShape(30, NUM_HEADS, HEAD_DIM, 16, dtype, scale_dtype)


def random_tokens(seed: int, num_tokens: int = NUM_TOKENS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_tokens, NUM_HEADS, HEAD_DIM, generator=generator)


def kept(layer: PoolLayer, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return read(layer.keys, ALL, dtype), read(layer.values, ALL, dtype)


def error(found: torch.Tensor, exact: torch.Tensor, dim: int | tuple[int, ...]) -> torch.Tensor:
    """Return the relative RMS error along ``dim``."""
    return (found - exact).square().sum(dim).sqrt() / exact.square().sum(dim).sqrt()


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_random_keys_and_values_come_back_nearly(dtype: torch.dtype) -> None:
    keys, values = random_tokens(1), random_tokens(2)
    found_keys, found_values = kept(layer_of(shape_of(dtype), keys, values))
    assert error(found_keys, keys, (0, 1, 2)) < BOUND[dtype]
    assert error(found_values, values, (0, 1, 2)) < BOUND[dtype]


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_large_channels_of_keys_do_not_blur_the_others(dtype: torch.dtype) -> None:
    keys = random_tokens(1)
    keys[:, 0, 3] *= 1000
    keys[:, 1, 40] += 300
    keys[:, :, 7] *= 1e-4
    found, _ = kept(layer_of(shape_of(dtype), keys, keys))
    assert error(found, keys, 0).max() < BOUND[dtype] * 1.2


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_large_tokens_of_values_do_not_blur_the_others(dtype: torch.dtype) -> None:
    values = random_tokens(1)
    values[5, 0] *= 1000
    values[6, 1] *= 1e-4
    _, found = kept(layer_of(shape_of(dtype), values, values))
    assert error(found, values, 2).max() < BOUND[dtype] * 1.5


@pytest.mark.parametrize("dtype", PLAIN)
def test_plain_forms_are_rounded_and_no_more(dtype: torch.dtype) -> None:
    keys, values = random_tokens(1), random_tokens(2)
    found = kept(layer_of(shape_of(dtype), keys, values))
    assert torch.equal(found[0], keys.to(dtype).float())
    assert torch.equal(found[1], values.to(dtype).float())


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("slots", [slice(3, 9), torch.tensor([7, 0, 7])])
def test_slots_are_read_alone_and_in_any_dtype(dtype: torch.dtype, slots: slice | torch.Tensor) -> None:
    layer = layer_of(shape_of(dtype), random_tokens(1, 10), random_tokens(2, 10))
    for side, whole in zip((layer.keys, layer.values), kept(layer), strict=True):
        assert torch.equal(read(side, slots, torch.float32), whole[slots])
        rounded = read(side, slots, torch.bfloat16)
        assert rounded.dtype == torch.bfloat16
        torch.testing.assert_close(rounded.float(), whole[slots], atol=0, rtol=2**-6)


numbers = st.floats(-(2.0**100), 2.0**100, width=32)


@settings(deadline=None)
@given(arrays("float32", (3, 1, 4), elements=numbers), st.floats(1e-20, 1e20), st.sampled_from(EIGHT_BITS))
def test_a_number_in_range_comes_back_within_half_a_step(
    tokens: object, scale: float, dtype: torch.dtype
) -> None:
    largest = LARGEST_CODE[dtype]
    scales = torch.full((1, 1, 4), scale)
    exact = torch.as_tensor(tokens).clamp(-largest * scale, largest * scale)
    codes = encode(exact, scales, dtype)
    found = codes.float() * scales
    # Of e4m3, numbers are apart by an eighth of their power of two; the smallest are 1/512 apart.
    step = scales if dtype == torch.int8 else torch.maximum(exact.abs() / 8, scales / 512)
    assert ((found - exact).abs() <= step / 2 * (1 + 1e-4)).all()
    assert torch.equal(encode(found, scales, dtype).float(), codes.float())


@settings(deadline=None)
@given(arrays("float32", (3, 1, 4), elements=numbers), st.sampled_from(EIGHT_BITS))
def test_any_values_fit_the_scale_of_their_token(tokens: object, dtype: torch.dtype) -> None:
    exact = torch.as_tensor(tokens)
    scales = value_scales(exact, dtype)
    found = encode(exact, scales, dtype).float() * scales
    step = exact.abs().amax(-1, keepdim=True) / (127 if dtype == torch.int8 else 14)
    assert ((found - exact).abs() <= step / 2 * 1.01 + 1e-35).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_code_of_fp8_is_read_as_torch_reads_it(dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(FP8)
    codes = codes[~codes.float().isnan()].view(-1, 1, 1)
    plane = ScaledPlane(codes, torch.full((1, 1, 1), 0.5), are_by_token=False)
    assert torch.equal(plane.read(ALL, dtype), codes.to(dtype) * 0.5)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_zeros_come_back_as_zeros(dtype: torch.dtype) -> None:
    zeros = torch.zeros(4, NUM_HEADS, HEAD_DIM)
    layer = layer_of(shape_of(dtype), random_tokens(1, 4), zeros)
    assert torch.equal(kept(layer)[1], zeros)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_keys_beyond_their_range_are_clamped_and_counted(dtype: torch.dtype) -> None:
    layer = layer_of(shape_of(dtype), random_tokens(1, 4), random_tokens(2, 4))
    assert isinstance(layer, ScaledLayer)
    assert layer.num_clamped == 0
    end = layer.keys.scales[0] * LARGEST_CODE[dtype]
    keys = torch.stack((end, -end, end, end))
    keys[2, 0, 5] *= 3
    keys[3, 1] *= -2
    layer.write(torch.arange(4), keys, random_tokens(2, 4))
    found, _ = kept(layer)
    torch.testing.assert_close(found, torch.stack((end, -end, end, end * torch.tensor([[1.0], [-1.0]]))))
    assert layer.num_clamped == 1 + HEAD_DIM


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_touches_no_other_token_and_no_other_head(dtype: torch.dtype, bad: float) -> None:
    keys, values = random_tokens(1, 4), random_tokens(2, 4)
    layer = layer_of(shape_of(dtype), keys, values)
    good = kept(layer)
    assert isinstance(layer, ScaledLayer)
    keys, values = keys.clone(), values.clone()
    keys[1, 0, 5] = values[1, 0, 5] = bad
    layer.write(torch.arange(4), keys, values)
    assert layer.num_clamped == 1
    found = kept(layer)
    for ours, theirs in zip(found, good, strict=True):
        is_other = torch.ones(4, NUM_HEADS, dtype=torch.bool)
        is_other[1, 0] = False
        assert torch.equal(ours[is_other], theirs[is_other])
    others = torch.arange(HEAD_DIM) != 5
    assert torch.equal(found[0][1, 0, others], good[0][1, 0, others])
    assert found[1][1, 0].isnan().all()


def test_eight_bits_take_about_half_of_sixteen() -> None:
    plain = shape_of(torch.bfloat16)
    for dtype in EIGHT_BITS:
        shape = shape_of(dtype)
        assert shape.token_bytes == plain.token_bytes // 2 + 30 * NUM_HEADS * 2
        assert shape.block_bytes == 16 * shape.token_bytes
        assert shape.layout != plain.layout


def test_the_name_of_a_form_tells_its_scales_apart() -> None:
    shape, scales = shape_of(torch.int8), torch.ones(2, 2, 4)
    assert form_name(shape, None) == "plain"
    assert form_name(shape, scales) == form_name(shape, scales.clone())
    assert form_name(shape, scales) != form_name(shape, scales * 2)


def test_a_device_that_cannot_convert_is_refused_with_the_reason() -> None:
    for dtype in (*PLAIN, *EIGHT_BITS):
        require_convertible(dtype, torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"kv_dtype: meta does not convert torch.float8_e4m3fn: .*meta"):
        require_convertible(FP8, torch.device("meta"))
