"""Tiers that store blocks in a codec's form."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.byte_planes import BytePlanes
from kvstore.clock import Clock
from kvstore.errors import ConfigError, UnknownFormError
from kvstore.forms import Forms
from kvstore.frame import RAW_CODEC, Expiry, Header, checksum
from kvstore.record import record_of
from kvstore.statistics import State
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import WriteMode
from tests.kvstore.codecs import ZlibCodec
from tests.kvstore.conftest import BLOCK_BYTES, Rig


class Breaking(ZlibCodec):
    """Fails in every call that ``broken`` names."""

    def __init__(self, *broken: str) -> None:
        self.broken = broken

    def encode(self, raw: memoryview, out: memoryview) -> int | None:
        if "encode" in self.broken:
            raise RuntimeError("no encoding today")
        return super().encode(raw, out)

    def decode(self, stored: memoryview, out: memoryview) -> None:
        if "decode" in self.broken:
            raise RuntimeError("no decoding today")
        super().decode(stored, out)


class Impostor(ZlibCodec):
    """Another codec with the same number."""


def encoded_on_disk(rig: Rig, *numbers: int) -> TieredStore:
    """Return a store, just restarted, whose blocks are on disk alone, in a codec's form."""
    rig.put(rig.open(codec=ZlibCodec()), *numbers)
    rig.stores[0].close()
    return rig.open(codec=ZlibCodec())


def header_of(rig: Rig, number: int) -> Header:
    return Header.unpack(rig.medium.frames[rig.key(number)][0])


def seal(rig: Rig, number: int, payload: bytes) -> None:
    """Put ``payload`` in place of a block's stored bytes, with a header that fits it."""
    header = replace(header_of(rig, number), stored_bytes=len(payload), checksum=checksum(payload))
    rig.medium.frames[rig.key(number)] = header.pack(), payload


def test_what_lies_on_the_medium_is_the_codecs_form_and_what_is_loaded_the_block(rig: Rig) -> None:
    store = encoded_on_disk(rig, 1, 2)
    for number in (1, 2):
        header, (_, payload) = header_of(rig, number), rig.medium.frames[rig.key(number)]
        assert payload == zlib.compress(rig.payload(number), 1)
        assert (header.codec, header.stored_bytes, header.raw_bytes) == (201, len(payload), BLOCK_BYTES)
        assert header.checksum == checksum(payload), "verified before it is decoded"
        assert rig.get(store, number)
    counts = rig.counts(store, "disk")
    stored_bytes = sum(len(payload) for _, payload in rig.medium.frames.values())
    assert (counts["loads"], counts["loaded_bytes"]) == (2, stored_bytes)
    assert rig.counts(rig.stores[0], "disk")["stored_bytes"] == stored_bytes


def test_the_budget_counts_what_lies_on_the_medium(rig: Rig) -> None:
    store = rig.open(disk_blocks=2, codec=ZlibCodec())
    for number in range(1, 30):
        rig.put(store, number)
    disk = store.statistics().tiers[2]
    assert disk.num_blocks == 29, "two raw blocks' room"
    assert disk.used_bytes == rig.medium.stats().occupied_bytes
    store.close()
    disk = rig.open(disk_blocks=2, codec=ZlibCodec()).statistics().tiers[2]
    assert (disk.num_blocks, disk.used_bytes) == (29, rig.medium.stats().occupied_bytes)


def test_a_block_that_would_not_shrink_is_stored_as_it_is(rig: Rig) -> None:
    rig.payload = lambda number: memoryview(Random(number).randbytes(BLOCK_BYTES))  # type: ignore[method-assign]
    store = encoded_on_disk(rig, 1)
    assert (header_of(rig, 1).codec, header_of(rig, 1).stored_bytes) == (RAW_CODEC, BLOCK_BYTES)
    assert rig.get(store, 1)


@pytest.mark.parametrize(("before", "after"), [(ZlibCodec(), None), (None, ZlibCodec())])
def test_after_a_change_of_the_configuration_older_blocks_are_served(
    rig: Rig, before: ZlibCodec | None, after: ZlibCodec | None
) -> None:
    rig.put(rig.open(codec=before), 1)
    rig.stores[0].close()
    store = rig.open(codec=after, codecs=[ZlibCodec()])
    rig.put(store, 2)
    store.clear("host")
    assert rig.get(store, 1)
    assert rig.get(store, 2)
    forms = [header_of(rig, number).codec for number in (1, 2)]
    assert forms == [codec.number if codec else RAW_CODEC for codec in (before, after)]
    assert rig.counts(store, "disk")["loads"] == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda header, payload: (header, bytes([payload[0] ^ 1]) + payload[1:]),
        lambda header, payload: (header, payload[:-1] + bytes([payload[-1] ^ 0x80])),
        lambda header, payload: (header, payload[:-1]),
        lambda header, payload: (header, payload + b"\0"),
        lambda header, _payload: (header, b""),
        lambda header, payload: (replace(Header.unpack(header), codec=RAW_CODEC).pack(), payload),
        lambda header, payload: (replace(Header.unpack(header), raw_bytes=4097).pack(), payload),
        lambda header, payload: (replace(Header.unpack(header), stored_bytes=9).pack(), payload),
    ],
)
def test_case_6_an_encoded_block_that_is_damaged_is_a_counted_miss_and_dropped(
    rig: Rig, damage: Callable[[bytes, bytes], tuple[bytes, bytes]]
) -> None:
    store = encoded_on_disk(rig, 1, 2)
    rig.medium.frames[rig.key(1)] = damage(*rig.medium.frames[rig.key(1)])
    assert not rig.get(store, 1)
    assert rig.get(store, 2)
    assert rig.counts(store, "disk")["corrupt"] == 1
    assert store.flush(5.0)
    assert rig.medium.frames.keys() == {rig.key(2)}


def test_case_6_encoded_values_that_were_swapped_are_counted_misses(rig: Rig) -> None:
    store = encoded_on_disk(rig, 1, 2)
    frames = rig.medium.frames
    frames[rig.key(1)], frames[rig.key(2)] = frames[rig.key(2)], frames[rig.key(1)]
    assert not rig.get(store, 1)
    assert not rig.get(store, 2)
    assert rig.counts(store, "disk")["corrupt"] == 2


def test_case_6_payloads_swapped_below_their_headers_are_counted_misses(rig: Rig) -> None:
    store = encoded_on_disk(rig, 1, 2)
    (one, first), (two, second) = (rig.medium.frames[rig.key(number)] for number in (1, 2))
    rig.medium.frames |= {rig.key(1): (one, second), rig.key(2): (two, first)}
    assert not rig.get(store, 1)
    assert not rig.get(store, 2)
    assert rig.counts(store, "disk")["corrupt"] == 2


def test_case_8_a_form_that_lacks_a_part_is_a_miss_even_where_its_checksum_fits(rig: Rig) -> None:
    rig.payload = lambda number: memoryview(bytes([number, 7]) * (BLOCK_BYTES // 2))  # type: ignore[method-assign]
    rig.put(rig.open(codec=BytePlanes(2)), 1)
    rig.stores[0].close()
    _, payload = rig.medium.frames[rig.key(1)]
    high_bytes = int.from_bytes(payload[6:10], "little")
    seal(rig, 1, payload[:-high_bytes])
    store = rig.open(codec=BytePlanes(2))
    assert not rig.get(store, 1)
    assert rig.counts(store, "disk")["corrupt"] == 1


def test_a_codec_that_fails_to_decode_costs_the_block_and_no_more(rig: Rig) -> None:
    encoded_on_disk(rig, 1)
    store = rig.open(codec=Breaking("decode"))
    assert not rig.get(store, 1)
    assert rig.counts(store, "disk")["corrupt"] == 1
    assert store.health().state is State.OK


def test_a_codec_that_fails_to_encode_pauses_writes_and_says_so(rig: Rig) -> None:
    store = rig.open(codec=Breaking("encode"))
    rig.put(store, 1, 2, 3)
    counts = rig.counts(store, "disk")
    assert (counts["write_faults"], counts["dropped_stores"], counts["breaker_openings"]) == (3, 3, 1)
    assert "no encoding today" in store.health().tiers["disk"].reason
    assert rig.medium.frames == {}
    assert rig.get(store, 1), "memory has it"


def test_the_audit_of_our_own_memory_is_of_the_block_and_not_of_its_form(rig: Rig) -> None:
    rig.put(rig.open(codec=ZlibCodec()), 1)
    rig.stores[0].close()
    store = rig.open(codec=ZlibCodec(), config=StoreConfig(audit_share=1.0))
    assert rig.get(store, 1)
    assert rig.tiers(store, 1) == ["host"]
    assert rig.get(store, 1)
    assert rig.counts(store, "host")["corrupt"] == 0
    hit = store.lookup([rig.key(1)])
    block = store.load(hit, 0, rig.now_s + 5).take()
    assert block is not None
    block.data[7] ^= 1
    block.release()
    hit.release()
    assert rig.get(store, 1), "the disk has it"
    assert rig.counts(store, "host")["corrupt"] == 1


@pytest.mark.parametrize("codec", [ZlibCodec(), None])
def test_a_block_that_was_audited_in_memory_is_written_with_the_checksum_of_what_is_stored(
    rig: Rig, codec: ZlibCodec | None
) -> None:
    config = StoreConfig(audit_share=1.0)
    store = rig.open(host_blocks=1, write_mode=WriteMode.BACK, codec=codec, config=config)
    rig.put(store, 1)
    rig.put(store, 2)
    for number in (1, 2):
        assert rig.get(store, number)
        assert store.flush(5.0)
    assert (rig.counts(store, "disk")["corrupt"], rig.counts(store, "host")["corrupt"]) == (0, 0)
    assert rig.counts(store, "disk")["loads"] > 0


@pytest.mark.parametrize("number", [-1, 0, 256])
def test_a_codecs_number_that_cannot_be_is_refused(rig: Rig, number: int) -> None:
    codec = ZlibCodec()
    codec.number = number
    with pytest.raises(ConfigError, match="1 to 255"):
        rig.open(codec=codec)


def test_two_codecs_of_one_number_are_refused(rig: Rig) -> None:
    with pytest.raises(ConfigError, match="ZlibCodec and Impostor have the same number, 201"):
        rig.open(codec=Impostor(), codecs=[ZlibCodec()])
    rig.open(codec=ZlibCodec(), codecs=[ZlibCodec()])


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=400), st.integers(1, 30), st.sampled_from([1, 2, 4]))
def test_any_block_comes_back_from_its_form(word: bytes, times: int, item_bytes: int) -> None:
    raw = memoryview(word * times)
    written, read = Forms(BytePlanes(item_bytes), [], Clock()), Forms(None, [BytePlanes(1)], Clock())
    stored = written.encode(raw)
    header = Header(
        b"N" * 16,
        b"K" * 16,
        b"",
        16,
        len(stored.data),
        len(raw),
        0,
        Expiry(),
        checksum(stored.data),
        stored.codec,
    )
    out = memoryview(bytearray(len(raw)))
    out[: len(stored.data)] = stored.data
    opened = read.open(header.pack(), record_of(header), out, len(stored.data))
    assert out == raw
    assert opened.checksum == (checksum(raw) if stored.codec == RAW_CODEC else None)
    if stored.codec != RAW_CODEC:
        with pytest.raises(UnknownFormError):
            Forms(None, [], Clock()).open(header.pack(), record_of(header), out, len(stored.data))
