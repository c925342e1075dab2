"""Encoded blocks on a real Valkey server: several parts each, split, joined, verified, then decoded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

import pytest

from backends.byte_planes import BytePlanes
from backends.redis_layout import PART_BYTES, header_name, part_name
from kvstore.arena import Arena
from kvstore.frame import Header
from kvstore.namespace import Namespace
from kvstore.seams import Codec
from kvstore.store import TieredStore
from kvstore.tier import TierConfig, TierSpec
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU
from tests.valkey import Valkey

BLOCK_BYTES = 3 * PART_BYTES
NAMESPACE = Namespace("weights", "{}", "bfloat16", "bfloat16", block_tokens=16)


class Stores:
    """Stores whose only tier is one server."""

    def __init__(self, server: Valkey) -> None:
        self.server = server
        self.opened: list[TieredStore] = []

    def open(self, codec: Codec | None = None) -> TieredStore:
        config = TierConfig("redis", 256 << 20, num_readers=2)
        backend = self.server.backend(timeout_s=1.0)
        spec = TierSpec(config, backend, LeafFirstLRU(), whole_blocks_that_fit, codec)
        self.opened.append(TieredStore([spec], Arena(8 * BLOCK_BYTES)))
        return self.opened[-1]


@pytest.fixture
def stores(own_valkey: Valkey) -> Iterator[Stores]:
    stores = Stores(own_valkey)
    yield stores
    for store in stores.opened:
        store.close(5.0)
        store.check()
        assert store.num_holds == 0


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def payload_of(number: int) -> memoryview:
    """Return a block like numbers of two bytes: one byte random, the other one of few."""
    random = Random(number)
    block = bytearray(random.randbytes(BLOCK_BYTES))
    block[1::2] = random.choices(b"\x3e\x3f\xbe\xbf", k=BLOCK_BYTES // 2)
    return memoryview(block)


def put(store: TieredStore, *numbers: int) -> None:
    for number in numbers:
        assert store.put(NAMESPACE, key_of(number), b"", payload_of(number))
    assert store.flush(10.0)


def get(store: TieredStore, number: int) -> bool:
    out = bytearray(BLOCK_BYTES)
    if not store.get_into(key_of(number), memoryview(out), timeout_s=5.0):
        return False
    assert out == payload_of(number)
    return True


def ask(store: TieredStore, *numbers: int) -> None:
    inquiry = store.inquire([key_of(number) for number in numbers], time.monotonic() + 60.0)
    assert inquiry is None or inquiry.wait(10.0)
    assert store.flush(10.0)


def counts(store: TieredStore) -> dict[str, int]:
    return store.statistics().tiers[1].counts


def test_blocks_are_stored_shorter_and_come_back_several_in_one_exchange(stores: Stores) -> None:
    store = stores.open(BytePlanes(2))
    put(store, 1, 2, 3, 4)
    packed = stores.server.admin().get(header_name(key_of(1)))
    assert isinstance(packed, bytes)
    header = Header.unpack(packed)
    assert (header.codec, header.raw_bytes) == (1, BLOCK_BYTES)
    assert PART_BYTES < header.stored_bytes < 0.7 * BLOCK_BYTES
    hit = store.lookup([key_of(number) for number in (1, 2, 3, 4)])
    tickets = [store.load(hit, index, hit.deadline_s) for index in range(4)]
    for number, ticket in enumerate(tickets, 1):
        assert ticket.wait(10.0)
        block = ticket.take()
        assert block is not None
        assert bytes(block.data) == payload_of(number)
        block.release()
    hit.release()
    assert counts(store)["loaded_bytes"] == counts(store)["stored_bytes"] < 0.7 * 4 * BLOCK_BYTES


def test_case_6_an_encoded_block_with_a_flipped_byte_in_any_part_is_a_counted_miss(stores: Stores) -> None:
    store = stores.open(BytePlanes(2))
    put(store, 1, 2, 3)
    for number, part, place in ((1, 0, 3), (2, 1, 77)):
        stores.server.admin().setrange(part_name(key_of(number), part), place, b"\xa5\x5a")
        assert not get(store, number)
    assert get(store, 3)
    assert counts(store)["corrupt"] == 2


def test_case_6_encoded_parts_swapped_between_blocks_are_counted_misses(stores: Stores) -> None:
    store = stores.open(BytePlanes(2))
    put(store, 1, 2)
    admin = stores.server.admin()
    one, two = (part_name(key_of(number), 0) for number in (1, 2))
    first, second = admin.get(one), admin.get(two)
    assert isinstance(first, bytes)
    assert isinstance(second, bytes)
    admin.set(one, second)
    admin.set(two, first)
    assert not get(store, 1)
    assert not get(store, 2)
    assert counts(store)["corrupt"] == 2


def test_case_8_an_encoded_block_that_lacks_a_part_is_a_counted_miss(stores: Stores) -> None:
    store = stores.open(BytePlanes(2))
    put(store, 1, 2)
    stores.server.admin().delete(part_name(key_of(1), 1))
    assert not get(store, 1)
    assert get(store, 2)
    assert counts(store)["missing"] == 1


def test_a_store_that_does_not_know_the_codec_leaves_the_others_blocks_alone(stores: Stores) -> None:
    new, old = stores.open(BytePlanes(2)), stores.open()
    put(new, 1)
    put(old, 2)
    ask(old, 1, 2)
    ask(new, 1, 2)
    assert not get(old, 1)
    assert get(old, 2)
    assert get(new, 1)
    assert get(new, 2), "whoever has a codec reads raw blocks too"
    assert counts(old)["corrupt"] == counts(old)["missing"] == 0
