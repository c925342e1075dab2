from __future__ import annotations

import struct
from dataclasses import replace

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import FrameError, UnknownFormError
from kvstore.frame import HEADER_BYTES, Expiry, Header, checksum, copy, copy_and_checksum, identify

HEADER = Header(
    namespace=b"N" * 16,
    key=b"K" * 16,
    parent=b"P" * 16,
    block_tokens=16,
    stored_bytes=737_280,
    raw_bytes=737_280,
    created_ms=1_800_000_000_000,
    expiry=Expiry(soft_ms=1_800_000_060_000, hard_ms=1_800_000_090_000),
    checksum=0x0123456789ABCDEF,
)
GOLDEN_HEADER = bytes.fromhex(
    "5046584401000010100000000100000000400b000000000000400b000000000000505c18a3010000603a5d18a3010000"
    "90af5d18a3010000efcdab89674523014e4e4e4e4e4e4e4e4e4e4e4e4e4e4e4e4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b"
    "505050505050505050505050505050500000000000000000000000000000000000000000000000000000000000000000"
    "00000000000000000000000000000000000000000000000000000000000000000000000000000000cef198d34e1f9a43"
)


def test_the_header_is_what_it_has_always_been() -> None:
    assert HEADER.pack() == GOLDEN_HEADER
    assert Header.unpack(GOLDEN_HEADER) == HEADER


def test_the_fields_lie_where_the_table_says() -> None:
    packed = HEADER.pack()
    assert len(packed) == HEADER_BYTES == 192
    assert packed[:4] == b"PFXD"
    assert struct.unpack_from("<HBBII", packed, 4) == (1, 0, 16, 16, 1)
    assert struct.unpack_from("<QQQQQQ", packed, 16) == (
        737_280, 737_280, 1_800_000_000_000, 1_800_000_060_000, 1_800_000_090_000, 0x0123456789ABCDEF,
    )  # fmt: skip
    assert packed[64:112] == b"N" * 16 + b"K" * 16 + b"P" * 16
    assert struct.unpack_from("<Q", packed, 184)[0] == xxhash.xxh3_64_intdigest(packed[:184])


def test_a_block_at_the_start_of_a_prompt_has_no_parent() -> None:
    first = replace(HEADER, parent=b"")
    assert Header.unpack(first.pack()) == first


@pytest.mark.parametrize("position", range(0, HEADER_BYTES, 5))
def test_a_flipped_bit_anywhere_in_the_header_is_found(position: int) -> None:
    packed = bytearray(HEADER.pack())
    packed[position] ^= 1
    with pytest.raises(FrameError):
        Header.unpack(bytes(packed))


def test_a_header_cut_short_is_no_header() -> None:
    with pytest.raises(FrameError, match="cut short"):
        Header.unpack(HEADER.pack()[:-1])


def test_another_format_version_says_so() -> None:
    packed = bytearray(HEADER.pack())
    packed[4] = 2
    with pytest.raises(UnknownFormError, match="frame version 2, this is version 1"):
        Header.unpack(bytes(packed))


def test_of_another_versions_frame_only_its_key_its_size_and_its_version_are_known() -> None:
    packed = replace(HEADER, version=2).pack()
    assert identify(packed, b"K" * 16, 7) == Header(b"", b"K" * 16, b"", 0, 7, 0, 0, Expiry(), 0, version=2)
    assert identify(HEADER.pack(), HEADER.key, HEADER.stored_bytes) == HEADER
    for broken in (packed[:191], b"?" + packed[1:], b""):
        with pytest.raises(FrameError):
            identify(broken, b"K" * 16, 7)


@given(st.integers(0, 2**62), st.integers(0, 2**62))
def test_the_earlier_limit_ends_a_block(soft_ms: int, hard_ms: int) -> None:
    limits = [limit for limit in (soft_ms, hard_ms) if limit]
    assert Expiry(soft_ms, hard_ms).at_ms == min(limits, default=0)


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 256 * 1024, 1_000_001])
@pytest.mark.parametrize("kind", [bytes, bytearray], ids=["read-only", "writable"])
def test_a_copy_is_the_same_however_long_it_is(nbytes: int, kind: type[bytes | bytearray]) -> None:
    source = kind(bytes(range(256)) * (nbytes // 256 + 1))
    target = bytearray(nbytes + 2)
    copy(memoryview(source)[:nbytes], memoryview(target)[1 : nbytes + 1])
    assert target == b"\0" + source[:nbytes] + b"\0"


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(memoryview(bytearray(300_001)), id="longer"),
        pytest.param(memoryview(bytearray(299_999)), id="shorter"),
        pytest.param(memoryview(bytearray(1_200_000)).cast("f"), id="of other items"),
    ],
)
def test_what_does_not_fit_is_not_copied(source: memoryview) -> None:
    with pytest.raises(ValueError, match="structures"):
        copy(source, memoryview(bytearray(300_000)))


def test_every_other_byte_may_be_copied_as_well() -> None:
    source, target = bytearray(b"ab" * 300_000), bytearray(300_000)
    copy(memoryview(source)[::2], memoryview(target))
    assert target == b"a" * 300_000


@pytest.mark.parametrize("nbytes", [0, 1, 262_144, 262_145, 1_000_000])
def test_copying_and_hashing_at_once_is_the_same_as_one_after_the_other(nbytes: int) -> None:
    source = bytes(range(256)) * (nbytes // 256 + 1)
    target = bytearray(nbytes)
    digest = copy_and_checksum(memoryview(source)[:nbytes], memoryview(target))
    assert target == source[:nbytes]
    assert digest == checksum(source[:nbytes]) == xxhash.xxh3_64_intdigest(source[:nbytes])
