from __future__ import annotations

import mmap
import os
from collections.abc import Callable

import pytest

from kvstore.arena import PAGE_BYTES, Arena
from kvstore.shared_memory import create_staging, map_shared_slab, view_slab, view_staging
from kvstore.slab import SlabMemory

STRIDE = 2 * PAGE_BYTES


def reopened(descriptor: int) -> int:
    """Open what a descriptor names once more, to write: as whoever was given it may try."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)


def test_who_has_the_descriptor_reads_what_the_owner_writes() -> None:
    slab = map_shared_slab(STRIDE, 3)
    view = view_slab(slab.descriptor, STRIDE, 3)
    slab.slots[STRIDE : STRIDE + 5] = b"hello"
    slab.generations[1] = 7
    assert bytes(view.slots[STRIDE : STRIDE + 5]) == b"hello"
    assert list(view.generations) == [0, 7, 0]
    assert (len(view.slots), view.slots.readonly) == (3 * STRIDE, True)


def test_generations_of_many_slots_take_more_than_a_page_and_do_not_touch_the_slots() -> None:
    num_slots = PAGE_BYTES // 8 + 1
    slab = map_shared_slab(PAGE_BYTES, num_slots)
    slab.generations[num_slots - 1] = 9
    assert bytes(slab.slots) == bytes(num_slots * PAGE_BYTES)
    assert view_slab(slab.descriptor, PAGE_BYTES, num_slots).generations[num_slots - 1] == 9


@pytest.mark.parametrize(
    "attack",
    [
        lambda descriptor: mmap.mmap(descriptor, PAGE_BYTES),
        lambda descriptor: mmap.mmap(reopened(descriptor), PAGE_BYTES),
        lambda descriptor: os.pwrite(reopened(descriptor), b"x", 0),
        lambda descriptor: os.ftruncate(reopened(descriptor), 0),
        lambda descriptor: os.posix_fallocate(reopened(descriptor), 0, 64 * STRIDE),
    ],
)
def test_nobody_but_the_owner_writes_to_a_slab_or_changes_its_size(attack: Callable[[int], object]) -> None:
    slab = map_shared_slab(STRIDE, 2)
    with pytest.raises(PermissionError):
        attack(slab.descriptor)
    slab.slots[:1] = b"y"
    assert view_slab(slab.descriptor, STRIDE, 2).slots[0] == ord("y")


def test_staging_memory_is_written_by_both_and_keeps_its_size() -> None:
    memory, descriptor = create_staging(PAGE_BYTES)
    view_staging(descriptor, PAGE_BYTES)[:3] = b"abc"
    assert bytes(memory[:3]) == b"abc"
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)


def test_a_slot_that_is_given_back_has_another_generation_and_owners_share_no_slab() -> None:
    arena = Arena(8 * STRIDE, slab_bytes=2 * STRIDE, map_slab=map_shared_slab)
    one, other = arena.allocate(STRIDE, b"a"), arena.allocate(STRIDE, b"b")
    assert one is not None
    assert other is not None
    assert one.slab is not None
    assert other.slab is not None
    assert one.slab is not other.slab
    assert (one.slab.owner, other.slab.owner) == (b"a", b"b")
    slab = one.slab
    assert arena.slab(slab.number) is slab
    one.free()
    assert slab.memory.generations[0] == 1
    assert arena.slab(slab.number) is slab, "one empty slab is kept"
    arena.check()
    other.free()
    arena.close()
    assert arena.slab(slab.number) is None


def test_a_slab_that_is_given_back_closes_its_descriptor() -> None:
    made: list[SlabMemory] = []

    def map_slab(stride_bytes: int, num_slots: int) -> SlabMemory:
        made.append(map_shared_slab(stride_bytes, num_slots))
        return made[-1]

    arena = Arena(64 * STRIDE, slab_bytes=2 * STRIDE, map_slab=map_slab)
    slots = [arena.allocate(STRIDE) for _ in range(64)]
    named = [os.fstat(slab.descriptor).st_ino for slab in made]
    assert len(set(named)) == 32
    for slot in slots:
        assert slot is not None
        slot.free()
    arena.close()
    assert not any(is_open(slab.descriptor, inode) for slab, inode in zip(made, named, strict=True))


def is_open(descriptor: int, inode: int) -> bool:
    """Say whether a descriptor still names what it did: its number may be another's by now."""
    try:
        return os.fstat(descriptor).st_ino == inode
    except OSError:
        return False
