from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.byte_planes import BytePlanes
from kvstore.conformance.codec import CodecConformance, decoded, encoded, like_numbers
from kvstore.errors import ConfigError, FrameError

BLOCK = like_numbers(5, 60_000)


class TestBytePlanesOfTwo(CodecConformance):
    def make_codec(self) -> BytePlanes:
        return BytePlanes(item_bytes=2)


class TestBytePlanesOfOne(CodecConformance):
    def make_codec(self) -> BytePlanes:
        return BytePlanes(item_bytes=1)

    def easy_block(self) -> bytes:
        return np.random.default_rng(1).normal(0, 10, 60_000).astype(np.int8).tobytes()


class TestBytePlanesOfFour(CodecConformance):
    def make_codec(self) -> BytePlanes:
        return BytePlanes(item_bytes=4)

    def easy_block(self) -> bytes:
        return np.random.default_rng(1).normal(0, 1, 20_000).astype(np.float32).tobytes()


def form(item_bytes: int, *planes: bytes, lengths: tuple[int, ...] | None = None) -> bytes:
    """Return a stored form made by hand."""
    sizes = lengths or tuple(map(len, planes))
    return struct.pack(f"<BB{len(sizes)}I", 1, item_bytes, *sizes) + b"".join(planes)


@settings(deadline=None)
@given(st.sampled_from([1, 2, 4]), st.binary(max_size=3000), st.integers(1, 40))
def test_any_block_comes_back(item_bytes: int, word: bytes, times: int) -> None:
    raw = word * times
    stored = encoded(BytePlanes(item_bytes), raw)
    if stored is not None:
        assert len(stored) < len(raw)
        assert decoded(BytePlanes(1), stored, len(raw)) == raw


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_whatever_is_no_form_of_a_block_is_refused(stored: bytes) -> None:
    with pytest.raises(FrameError):
        decoded(BytePlanes(2), stored, 4096)


def test_numbers_of_16_bits_shrink_by_their_exponents() -> None:
    values = np.random.default_rng(1).normal(0, 1, 100_000).astype(np.float32)
    raw = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()  # bf16
    stored = encoded(BytePlanes(2), raw)
    assert stored is not None
    assert len(raw) / len(stored) > 1.4


def test_the_item_size_of_the_form_counts_not_that_of_the_configuration() -> None:
    stored = encoded(BytePlanes(2), BLOCK)
    assert stored is not None
    for item_bytes in (1, 2, 4):
        assert decoded(BytePlanes(item_bytes), stored, len(BLOCK)) == BLOCK


def test_the_form_is_as_the_module_says() -> None:
    stored = encoded(BytePlanes(2), BLOCK)
    assert stored is not None
    kind, item_bytes, low, high = struct.unpack_from("<BBII", stored)
    assert (kind, item_bytes, low) == (1, 2, len(BLOCK) // 2)
    assert stored[10 : 10 + low] == BLOCK[::2], "what looks random lies as it is"
    assert zstandard.decompress(stored[10 + low : 10 + low + high]) == BLOCK[1::2]
    assert len(stored) == 10 + low + high


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\1",
        form(2, b"a" * 4, b"b" * 4)[:9],
        b"\2" + form(2, b"a" * 4, b"b" * 4)[1:],
        form(3, b"a", b"b", b"c"),
        form(2, b"a" * 4, b"b" * 5),
        form(2, b"a" * 4, b"b" * 3),
        form(2, b"a" * 4, b""),
        form(2, b"a" * 4, b"b" * 4, lengths=(4, 5)),
        form(2, b"a" * 4, b"b" * 4, lengths=(4, 2**32 - 1)),
        form(2, b"a" * 4, b"b" * 4) + b"x",
        form(4, b"a" * 2, b"b" * 2, b"c" * 2, b"d" * 3),
    ],
)
def test_a_form_that_does_not_add_up_is_refused(stored: bytes) -> None:
    with pytest.raises(FrameError):
        decoded(BytePlanes(2), stored, 8)


def test_a_frame_that_claims_to_be_huge_is_refused_before_memory_is_taken() -> None:
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(256 << 20))
    nameless = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(256 << 20))
    tracemalloc.start()
    try:
        for frame in (bomb, nameless):
            with pytest.raises(FrameError):
                decoded(BytePlanes(2), form(2, bytes(100_000), frame), 200_000)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 << 20


def test_a_frame_that_holds_less_than_it_claims_is_refused() -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(1000))
    short = zstandard.ZstdCompressor().compress(bytes(999))
    with pytest.raises(FrameError):
        decoded(BytePlanes(2), form(2, bytes(1000), frame[:-1]), 2000)
    with pytest.raises(FrameError):
        decoded(BytePlanes(2), form(2, bytes(1000), short), 2000)


@pytest.mark.parametrize("item_bytes", [0, -1, 3, 8])
def test_an_item_size_that_cannot_be_is_refused(item_bytes: int) -> None:
    with pytest.raises(ConfigError):
        BytePlanes(item_bytes)
