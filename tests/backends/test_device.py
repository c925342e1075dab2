"""The device pool: states of blocks, placement, eviction, conservation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from backends.copies import Copies
from backends.device import DevicePool
from backends.kv_shape import KVShape, Layout
from kvstore.clock import Clock
from kvstore.errors import InvariantError
from kvstore.namespace import Namespace
from policies.lru import LeafFirstLRU
from tests.late_cuda import LateCuda
from tests.policies.agents import SAID_TO_END, convince

LAYOUTS: list[Layout] = ["layer-first", "block-first"]
SHAPE = KVShape(num_layers=2, num_kv_heads=2, head_dim=4, block_tokens=4, dtype=torch.float32)


class Ticking:
    """A clock that moves on by a second each time it is read."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


class TellingLRU(LeafFirstLRU):
    """An LRU that remembers the uses it was told of."""

    def __init__(self) -> None:
        super().__init__()
        self.uses: list[bytes] = []

    def insert(self, key: bytes, parent: bytes, now_s: float) -> None:
        self.uses.append(key)
        super().insert(key, parent, now_s)

    def touch(self, key: bytes, now_s: float) -> None:
        self.uses.append(key)
        super().touch(key, now_s)


class Pool(DevicePool):
    """A pool that remembers which keys it has told the index of."""

    def __init__(
        self,
        num_blocks: int,
        shape: KVShape = SHAPE,
        layout: Layout = "layer-first",
        copies: Copies | None = None,
    ) -> None:
        self.index: dict[bytes, bytes] = {}
        removed, clock = self.index.__delitem__, Clock(monotonic_s=Ticking())
        self.policy = TellingLRU()
        super().__init__(shape, num_blocks, "cpu", self.policy, self.added, removed, clock, layout, copies)

    def added(self, key: bytes, parent: bytes, _namespace: Namespace | None) -> None:
        self.index[key] = parent

    def allocated(self, num: int, after: int | None = None) -> list[int]:
        blocks = self.allocate(num, after)
        assert blocks is not None
        return blocks

    def bytes_of(self, block: int) -> bytes:
        """Return a block as it lies at rest, waiting for all that is under way."""
        out = bytearray(self.shape.block_bytes)
        self.read_block(block, memoryview(out)).wait()
        return bytes(out)

    def published(self, keys: Iterable[bytes]) -> list[int]:
        """Allocate and publish a prefix made of ``keys``."""
        parent, blocks = b"", list[int]()
        for key in keys:
            (block,) = self.allocated(1, blocks[-1] if blocks else None)
            assert self.publish(block, key, parent)
            blocks.append(block)
            parent = key
        return blocks


def test_a_block_is_the_bytes_of_all_its_layers() -> None:
    assert SHAPE.token_bytes == 2 * 2 * 2 * 4 * 4
    assert SHAPE.block_bytes == 4 * SHAPE.token_bytes


def test_a_published_block_is_shared_by_its_key() -> None:
    pool = Pool(4)
    (block,) = pool.published([b"a"])
    assert pool.acquire(b"a") == block
    assert pool.acquire(b"b") is None
    assert pool.index == {b"a": b""}
    pool.release([block, block])
    assert pool.num_available == 4
    assert pool.num_cached == 1
    pool.check()


def test_a_private_block_becomes_free_again() -> None:
    pool = Pool(4)
    blocks = pool.allocated(3)
    assert (pool.num_free, pool.num_available) == (1, 1)
    pool.release(blocks)
    assert (pool.num_free, pool.num_available, pool.num_cached) == (4, 4, 0)
    pool.check()


def test_a_key_has_one_block_and_the_second_stays_private() -> None:
    pool = Pool(4)
    pool.published([b"a"])
    (twin,) = pool.allocated(1)
    assert not pool.publish(twin, b"a", b"")
    pool.release([twin])
    assert pool.num_free == 3
    pool.check()


def test_allocation_is_all_or_none() -> None:
    pool = Pool(4)
    pool.published([b"a", b"b"])
    assert pool.allocate(3) is None
    assert pool.num_free == 2
    pool.check()


def test_blocks_follow_the_one_they_continue() -> None:
    pool = Pool(100)
    first = pool.allocated(3)
    second = pool.allocated(3)
    assert pool.allocated(2, after=first[-1]) == [first[-1] + 1, first[-1] + 2]
    assert pool.allocated(2, after=second[-1]) == [second[-1] + 1, second[-1] + 2]


def test_one_run_is_preferred_and_pieces_are_the_last_resort() -> None:
    pool = Pool(8)
    blocks = pool.allocated(8)
    pool.release([blocks[1], blocks[2], blocks[4], blocks[5], blocks[6]])
    assert pool.allocated(3) == [4, 5, 6]
    pool.release([4, 5, 6])
    assert pool.allocated(4, after=0) == [1, 2, 4, 5]
    pool.release([1, 2, 4, 5])
    assert pool.allocated(4, after=7) == [4, 5, 6, 1]


def test_cached_blocks_are_evicted_only_when_free_ones_do_not_suffice() -> None:
    pool = Pool(4)
    pool.release(pool.published([b"a", b"b"]))
    pool.allocated(2)
    assert set(pool.index) == {b"a", b"b"}
    pool.allocated(1)
    assert set(pool.index) == {b"a"}
    pool.check()


def test_the_policy_says_who_goes_first() -> None:
    pool = Pool(3)
    for key in (b"a", b"b", b"c"):
        pool.release(pool.published([key]))
    block = pool.acquire(b"a")
    assert block is not None
    pool.release([block])
    pool.allocated(1)
    assert set(pool.index) == {b"a", b"c"}


def test_the_policy_is_told_of_a_use_once_when_it_ends() -> None:
    pool = Pool(4)
    blocks = pool.published([b"a", b"b"])
    assert pool.acquire(b"b") == blocks[1], "it is copied into a store"
    pool.release([blocks[1]], is_used=False)
    assert pool.policy.uses == []
    pool.release(reversed(blocks))
    assert pool.policy.uses == [b"b", b"a"]
    assert pool.acquire(b"a") == pool.acquire(b"a") == blocks[0]
    pool.release([blocks[0]])
    assert pool.policy.uses == [b"b", b"a", b"a"], "each of two that use it is heard of"
    pool.release([blocks[0]])
    assert pool.policy.uses == [b"b", b"a", b"a", b"a"]
    pool.check()


def test_what_a_long_sequence_held_was_used_when_it_ended() -> None:
    pool = Pool(2)
    (long,) = pool.published([b"long"])
    pool.release(pool.published([b"short"]))
    pool.release([long])
    pool.allocated(1)
    assert set(pool.index) == {b"long"}


def test_who_gives_a_block_back_unused_does_not_make_it_any_younger() -> None:
    pool = Pool(2)
    (copied,) = pool.published([b"copied"])
    assert pool.acquire(b"copied") == copied
    pool.release([copied])  # its sequence ends, and it is still copied
    pool.release(pool.published([b"younger"]))
    pool.release([copied], is_used=False)
    assert list(pool._policy.victims(lambda _: False)) == [b"copied", b"younger"]
    assert pool.acquire(b"copied") == copied
    pool.release([copied], is_used=False)
    assert list(pool._policy.victims(lambda _: False)) == [b"copied", b"younger"]
    pool.check()


def test_a_block_given_back_unused_by_the_last_that_holds_it_may_go_all_the_same() -> None:
    pool = Pool(1)
    pool.release(pool.published([b"a"]), is_used=False)
    pool.check()
    pool.allocated(1)
    assert pool.index == {}


def test_a_cached_parent_stays_while_its_child_is_in_use() -> None:
    pool = Pool(3)
    parent, child = pool.published([b"parent", b"child"])
    pool.release([parent])
    assert pool.num_available == 1
    assert pool.allocate(2) is None
    pool.release([child])
    assert pool.num_available == 3
    pool.check()


def test_a_parent_published_after_its_child_is_held_by_it() -> None:
    pool = Pool(2)
    parent, child = pool.allocated(2)
    pool.publish(child, b"child", b"parent")
    pool.publish(parent, b"parent", b"")
    pool.release([parent])
    assert pool.num_available == 0
    pool.check()
    pool.release([child])
    assert pool.num_available == 2
    pool.check()


def test_blocks_are_discarded_by_key_but_for_those_in_use() -> None:
    pool = Pool(4)
    blocks = pool.published([b"a", b"b", b"c", b"d"])
    pool.release(blocks)
    assert pool.acquire(b"b") == blocks[1]

    pool.discard([b"a", b"b", b"c", b"unknown"])

    assert pool.index.keys() == {b"a", b"b", b"d"}, "a block in use keeps its parent"
    pool.check()
    pool.release([blocks[1]])
    pool.discard([b"a"])
    assert pool.index.keys() == {b"b", b"d"}
    assert pool.num_available == 4
    pool.check()


def test_clear_forgets_everything_that_is_not_in_use() -> None:
    pool = Pool(4)
    pool.release(pool.published([b"a", b"b"]))
    kept = pool.published([b"c"])
    pool.clear()
    assert set(pool.index) == {b"c"}
    pool.release(kept)
    pool.clear()
    assert pool.index == {}
    assert pool.num_free == 4
    pool.check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_block_at_rest_is_layer_kind_token_head_dimension(layout: Layout, dtype: torch.dtype) -> None:
    pool = Pool(3, KVShape(2, 2, 4, 4, dtype), layout)
    pool.keys_and_values.copy_(torch.randn(pool.keys_and_values.shape))
    at_rest = torch.frombuffer(bytearray(pool.bytes_of(1)), dtype=dtype).view(2, 2, 4, 2, 4)
    for layer, sides in enumerate(pool.layers):
        for kind, slots in enumerate(sides):
            assert torch.equal(at_rest[layer, kind], slots[pool.pages_per_block * 4 :][:4])


def test_block_first_a_block_lies_as_it_does_at_rest() -> None:
    pool = Pool(3, layout="block-first")
    pool.keys_and_values.copy_(torch.randn(pool.keys_and_values.shape))
    assert pool.keys_and_values[1].is_contiguous()
    assert pool.keys_and_values[1].numpy().tobytes() == pool.bytes_of(1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_of_all_layers_have_one_stride_and_one_number(layout: Layout) -> None:
    pool = Pool(3, layout=layout)
    sides = [side for layer in pool.layers for side in layer]
    assert {side.stride() for side in sides} == {(2 * 4, 4, 1)}
    assert len({side.shape for side in sides}) == 1
    assert all(len(side) % 4 == 0 for side in sides)
    assert len(sides[0]) >= (2 * pool.pages_per_block + 1) * 4
    for number, side in enumerate(sides):
        for block in range(3):
            side[block * pool.pages_per_block * 4 :][:4] = number * 3 + block
    written = Counter(pool.keys_and_values.flatten().tolist())
    assert written == dict.fromkeys(range(12), 4 * 2 * 4)


def test_a_form_with_scales_is_layer_first() -> None:
    with pytest.raises(InvariantError, match="no block-first layout"):
        Pool(3, KVShape(2, 2, 4, 4, torch.int8, torch.bfloat16), "block-first")


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_block_in_8_bits_has_its_scales_behind_it(dtype: torch.dtype) -> None:
    pool = Pool(3, KVShape(2, 2, 4, 4, dtype, torch.bfloat16))
    bytes_of_pool = pool.keys_and_values.view(torch.uint8)
    bytes_of_pool.copy_(torch.randint(256, bytes_of_pool.shape))
    assert pool.value_scales is not None
    pool.value_scales.copy_(torch.rand(pool.value_scales.shape))
    assert pool.shape.token_bytes == 2 * 2 * 2 * 4 + 2 * 2 * 2
    out = bytearray(pool.shape.block_bytes)
    pool.read_block(1, memoryview(out))
    assert out[: 2 * 2 * 4 * 2 * 4] == bytes_of_pool[:, :, 4:8].contiguous().numpy().tobytes()
    scales = torch.frombuffer(out, dtype=torch.bfloat16, offset=2 * 2 * 4 * 2 * 4)
    assert torch.equal(scales.view(2, 1, 4, 2, 1), pool.value_scales[:, :, 4:8])

    other = Pool(5, pool.shape)
    first, second = other.allocated(2)
    other.write_block(first, memoryview(out))
    other.copy_block(first, second)
    back = bytearray(len(out))
    other.read_block(second, memoryview(back))
    assert back == out


@pytest.mark.parametrize("theirs", LAYOUTS)
@pytest.mark.parametrize("ours", LAYOUTS)
def test_a_block_of_any_pool_is_written_to_any_other_bit_for_bit(theirs: Layout, ours: Layout) -> None:
    source, target = Pool(2, layout=theirs), Pool(5, layout=ours)
    for pool in (source, target):
        pool.keys_and_values.copy_(torch.randn(pool.keys_and_values.shape))
    before = [target.bytes_of(block) for block in range(5)]
    block = target.allocated(4)[3]
    target.write_block(block, memoryview(bytearray(source.bytes_of(1))))
    assert target.bytes_of(block) == source.bytes_of(1)
    assert [target.bytes_of(other) for other in (0, 1, 2, 4)] == [*before[:3], before[4]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_block_is_copied_whole(layout: Layout) -> None:
    pool = Pool(3, layout=layout)
    pool.keys_and_values.copy_(torch.randn(pool.keys_and_values.shape))
    source, target = pool.allocated(2)
    other = pool.bytes_of(2)
    pool.copy_block(source, target)
    assert pool.bytes_of(source) == pool.bytes_of(target) != other == pool.bytes_of(2)


def data(value: float) -> memoryview:
    """Return a block at rest that is full of ``value``."""
    return memoryview(bytearray(torch.full(SHAPE.dimensions, value, dtype=SHAPE.dtype).numpy().tobytes()))


def test_a_step_sees_what_was_loaded_into_its_blocks_and_waits_for_no_other() -> None:
    cuda = LateCuda()
    pool = Pool(4, layout="block-first", copies=cuda.copies)
    first, second, third = pool.allocated(3)
    copies = [pool.write_block(block, data(block + 1)) for block in (first, second, third)]
    pool.order_after_loads([3, first])
    assert [copy.done() for copy in copies] == [True, False, False]
    pool.order_after_loads([third])
    assert [copy.done() for copy in copies] == [True, True, True]
    assert pool.keys_and_values[:3, 0, 0, 0, 0, 0].tolist() == [1, 2, 3]


def test_a_block_given_back_while_it_is_loaded_is_loaded_before_anything_else_happens_to_it() -> None:
    cuda = LateCuda()
    pool = Pool(1, layout="block-first", copies=cuda.copies)
    (block,) = pool.allocated(1)
    pool.write_block(block, data(1))
    pool.release([block])

    assert pool.allocated(1) == [block]
    pool.order_after_loads([block])
    pool.keys_and_values.fill_(2)  # its new owner computes
    cuda.into.run()

    assert pool.bytes_of(block) == data(2)


def test_a_block_given_back_while_it_is_loaded_is_loaded_again_in_order() -> None:
    cuda = LateCuda()
    pool = Pool(1, layout="block-first", copies=cuda.copies)
    for value in (1, 2):
        (block,) = pool.allocated(1)
        pool.write_block(block, data(value))
        pool.release([block])
    assert pool.bytes_of(0) == data(2)


def test_a_block_is_copied_and_stored_as_it_was_loaded() -> None:
    cuda = LateCuda()
    pool = Pool(3, layout="block-first", copies=cuda.copies)
    loaded, copied = pool.allocated(2)
    out = bytearray(SHAPE.block_bytes)
    pool.write_block(loaded, data(1))
    stored = pool.read_block(loaded, memoryview(out))
    cuda.out.run()
    assert stored.done()
    assert out == data(1)
    pool.write_block(copied, data(3))
    pool.copy_block(loaded, copied)
    cuda.into.run()
    assert pool.bytes_of(copied) == data(1)


def test_a_published_block_is_never_written_again() -> None:
    pool = Pool(2)
    published, private = pool.published([b"a"]) + pool.allocated(1)
    with pytest.raises(InvariantError, match="block 0 is not private"):
        pool.write_block(published, memoryview(bytearray(SHAPE.block_bytes)))
    with pytest.raises(InvariantError, match="block 0 is not private"):
        pool.copy_block(private, published)


def test_a_reference_is_given_back_once() -> None:
    pool = Pool(2)
    blocks = pool.allocated(1)
    pool.release(blocks)
    with pytest.raises(InvariantError, match="block 0 is released and has no reference"):
        pool.release(blocks)


def test_a_block_that_is_set_aside_is_no_part_of_the_pool_any_more() -> None:
    pool = Pool(4)
    assert pool.set_aside() == 3
    assert (pool.num_blocks, pool.num_free, pool.num_available) == (3, 3, 3)
    assert pool.allocate(4) is None
    assert pool.allocated(3) == [0, 1, 2]
    pool.check()


def test_a_block_in_use_is_not_set_aside() -> None:
    pool = Pool(2)
    pool.allocated(2)
    with pytest.raises(InvariantError, match="block 1 is in use"):
        pool.set_aside()
    pool.check()


def test_check_finds_a_block_that_is_free_and_in_use() -> None:
    pool = Pool(2)
    (block,) = pool.allocated(1)
    pool._is_free[block] = 1
    with pytest.raises(InvariantError, match="no free block is in use"):
        pool.check()


class PoolMachine(RuleBasedStateMachine):
    """Sequences come, share, publish out of order and go, in a pool that is too small for them."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(8)
        self.private: list[int] = []
        self.shared: list[int] = []

    @rule(num=st.integers(0, 5), after=st.none() | st.integers(0, 7))
    def allocate(self, num: int, after: int | None) -> None:
        available = self.pool.num_available
        blocks = self.pool.allocate(num, after)
        assert (blocks is not None) == (num <= available)
        assert len(set(blocks or ())) == len(blocks or ())
        self.private += blocks or ()

    @rule(data=st.data(), depth=st.integers(1, 4))
    def publish(self, data: st.DataObject, depth: int) -> None:
        if self.private:
            block = data.draw(st.sampled_from(self.private))
            known = depth.to_bytes() in self.pool.index
            parent = (depth - 1).to_bytes() if depth > 1 else b""
            assert self.pool.publish(block, depth.to_bytes(), parent) != known
            if not known:
                self.private.remove(block)
                self.shared.append(block)

    @rule(depth=st.integers(1, 4))
    def acquire(self, depth: int) -> None:
        block = self.pool.acquire(depth.to_bytes())
        assert (block is not None) == (depth.to_bytes() in self.pool.index)
        self.shared += [] if block is None else [block]

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = self.private + self.shared
        if held:
            block = data.draw(st.sampled_from(held))
            (self.private if block in self.private else self.shared).remove(block)
            self.pool.release([block])

    @rule(depth=st.integers(1, 4))
    def discard(self, depth: int) -> None:
        self.pool.discard([depth.to_bytes()])

    @rule()
    def clear(self) -> None:
        self.pool.clear()
        assert len(self.pool.index) <= len(self.shared) + 4

    @invariant()
    def blocks_add_up(self) -> None:
        self.pool.check()
        assert self.pool.num_free + len(self.private) + len(self.pool.index) == self.pool.num_blocks


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase


def cached(pool: Pool, *names: bytes) -> None:
    """Publish blocks that nobody uses, one after the other."""
    for name in names:
        [block] = pool.allocated(1)
        assert pool.publish(block, name, b"")
        pool.release([block])


def test_spared_blocks_go_last_and_go_where_nothing_else_can() -> None:
    pool = Pool(4)
    cached(pool, b"a", b"b", b"c", b"d")
    pool.spared.spare([b"a", b"c"])
    first = pool.allocated(1)
    assert pool.index.keys() == {b"a", b"c", b"d"}
    second = pool.allocated(2)
    assert pool.index.keys() == {b"c"}
    pool.release([*first, *second])
    pool.check()


def test_a_policy_is_told_of_a_prompt_that_has_ended() -> None:
    pool = Pool(4)
    convince(pool._policy)
    cached(pool, b"a", b"b", b"c", b"d")
    pool.hear([b"c"], SAID_TO_END)
    pool.release(pool.allocated(1))
    assert pool.index.keys() == {b"a", b"b", b"d"}
    pool.check()
