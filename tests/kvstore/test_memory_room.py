"""Slabs are one owner's each: who fills memory must not keep others out, nor lose much to let them in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backends.host import HostBackend
from kvstore.arena import Arena
from kvstore.namespace import Namespace
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import TierConfig, TierSpec
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU
from tests.kvstore.conftest import BLOCK_BYTES, NAMESPACE, DictBackend

LARGE = NAMESPACE.with_salt("", "large")
SMALL = NAMESPACE.with_salt("", "small")
OWNERS = {LARGE.digest: b"large", SMALL.digest: b"small"}
NUM_BLOCKS = 32
SLOTS_OF_A_SLAB = 4


@pytest.fixture
def store() -> Iterator[TieredStore]:
    """Return a store with room for 32 blocks in 8 slabs, and no more memory than that."""
    arena = Arena(NUM_BLOCKS * BLOCK_BYTES, slab_bytes=SLOTS_OF_A_SLAB * BLOCK_BYTES)
    host = TierConfig("host", NUM_BLOCKS * BLOCK_BYTES)
    specs = [
        TierSpec(host, HostBackend(arena), LeafFirstLRU(), whole_blocks_that_fit),
        TierSpec(TierConfig("disk", 1 << 20), DictBackend(), LeafFirstLRU(), whole_blocks_that_fit),
    ]
    store = TieredStore(specs, arena, StoreConfig(), owner_of=lambda namespace: OWNERS.get(namespace, b""))
    yield store
    store.close(2.0)
    store.check()
    assert store.num_holds == 0


def key(owner: bytes, number: int) -> bytes:
    """Return the key of a block."""
    return owner[:1] + number.to_bytes(15, "big")


def put(store: TieredStore, namespace: Namespace, *numbers: int) -> int:
    """Store blocks of a tenant that follow each other in nothing; returns how many were taken."""
    owner = OWNERS[namespace.digest]
    data = [memoryview(owner[:1] * BLOCK_BYTES) for _ in numbers]
    taken = sum(
        store.put(namespace, key(owner, number), b"", one) for number, one in zip(numbers, data, strict=True)
    )
    assert store.flush(5.0)  # what is being written is in use
    return taken


def in_memory(store: TieredStore, namespace: Namespace) -> list[int]:
    """Return the numbers of a tenant's blocks that are in memory."""
    keys = {number: key(OWNERS[namespace.digest], number) for number in range(100)}
    return [number for number, one in keys.items() if store.peek([one]) == ("host",)]


def use_in_another_order(store: TieredStore) -> None:
    """Use all blocks so that those that lie in one slab are used far apart."""
    for first in range(SLOTS_OF_A_SLAB):
        for number in range(first, NUM_BLOCKS, SLOTS_OF_A_SLAB):
            store.lookup([key(b"large", number)]).release()


def test_who_has_no_memory_gets_a_slab_for_which_another_loses_little_more(store: TieredStore) -> None:
    assert put(store, LARGE, *range(NUM_BLOCKS)) == NUM_BLOCKS
    use_in_another_order(store)
    assert put(store, SMALL, 1) == 1
    assert in_memory(store, SMALL) == [1]
    assert len(in_memory(store, LARGE)) >= NUM_BLOCKS - SLOTS_OF_A_SLAB - 2
    assert put(store, SMALL, 2, 3, 4) == 3
    assert len(in_memory(store, LARGE)) >= NUM_BLOCKS - SLOTS_OF_A_SLAB - 5


def test_blocks_in_use_keep_their_slab_and_another_makes_way(store: TieredStore) -> None:
    put(store, LARGE, *range(NUM_BLOCKS))
    use_in_another_order(store)
    held = store.lookup([key(b"large", number) for number in range(0, NUM_BLOCKS - SLOTS_OF_A_SLAB, 2)])
    assert put(store, SMALL, 1) == 1
    assert in_memory(store, SMALL) == [1]
    assert set(in_memory(store, LARGE)) >= set(range(0, NUM_BLOCKS - SLOTS_OF_A_SLAB, 2))
    held.release()


def test_while_all_is_in_use_nothing_is_taken_and_nobody_is_harmed(store: TieredStore) -> None:
    put(store, LARGE, *range(NUM_BLOCKS))
    held = store.lookup([key(b"large", number) for number in range(NUM_BLOCKS)])
    assert put(store, SMALL, 1) == 0
    held.release()
    assert put(store, SMALL, 1) == 1


def test_a_load_gets_memory_too(store: TieredStore) -> None:
    put(store, SMALL, 1)
    assert store.flush(5.0)
    store.clear("host")
    put(store, LARGE, *range(NUM_BLOCKS))
    assert store.flush(5.0)
    use_in_another_order(store)
    out = bytearray(BLOCK_BYTES)
    assert store.get_into(key(b"small", 1), memoryview(out), timeout_s=5.0)
    assert out == b"s" * BLOCK_BYTES
    assert len(in_memory(store, LARGE)) >= NUM_BLOCKS - SLOTS_OF_A_SLAB - 2


def test_tenants_that_store_by_turns_both_keep_blocks(store: TieredStore) -> None:
    for turn in range(20):
        assert put(store, LARGE, *range(4 * turn, 4 * turn + 4)) == 4
        assert put(store, SMALL, turn) == 1
    assert len(in_memory(store, SMALL)) >= 3
    assert len(in_memory(store, LARGE)) >= NUM_BLOCKS // 2
