from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvstore.arena import PAGE_BYTES, Arena
from kvstore.mapped_ahead import MappedAhead, populate
from kvstore.slab import map_memory
from tests.eventually import eventually


class Taken:
    """Notes the memory whose pages are taken; fails while it ``is_broken``."""

    def __init__(self) -> None:
        self.memories: list[memoryview] = []
        self.is_broken = False

    def __call__(self, memory: memoryview) -> None:
        if self.is_broken:
            raise OSError("no memory")
        self.memories.append(memory)


def test_a_slab_like_the_last_one_was_mapped_ahead_with_its_pages_taken() -> None:
    taken = Taken()
    map_slab = MappedAhead(taken)
    first, second, third = (map_slab(PAGE_BYTES, 4) for _ in range(3))
    assert len({id(memory.slots.obj) for memory in (first, second, third)}) == 3
    assert taken.memories[:2] == [second.slots, third.slots]
    assert taken.memories[0].obj is second.slots.obj
    assert [len(memory.slots) for memory in (first, second, third)] == [4 * PAGE_BYTES] * 3


def test_a_slab_of_another_shape_is_mapped_for_itself() -> None:
    map_slab = MappedAhead(Taken())
    map_slab(PAGE_BYTES, 4)
    assert len(map_slab(PAGE_BYTES, 2).slots) == 2 * PAGE_BYTES
    assert len(map_slab(2 * PAGE_BYTES, 2).slots) == 4 * PAGE_BYTES


def test_shapes_in_turn_have_nothing_mapped_ahead() -> None:
    taken = Taken()
    map_slab = MappedAhead(taken)
    for num_slots in (1, 2, 1, 2, 1, 2, 2):
        map_slab(PAGE_BYTES, num_slots)
    assert len(map_slab(PAGE_BYTES, 2).slots) == 2 * PAGE_BYTES
    eventually(lambda: [len(memory) for memory in taken.memories][:2] == [PAGE_BYTES, 2 * PAGE_BYTES])


def test_without_a_thread_all_is_mapped_when_it_is_asked_for() -> None:
    map_slab = MappedAhead(Taken())
    map_slab._worker.shutdown()
    assert [len(map_slab(PAGE_BYTES, 4).slots) for _ in range(3)] == [4 * PAGE_BYTES] * 3


def test_what_could_not_be_mapped_ahead_is_mapped_when_it_is_asked_for() -> None:
    taken = Taken()
    map_slab = MappedAhead(taken)
    taken.is_broken = True
    map_slab(PAGE_BYTES, 4)
    assert len(map_slab(PAGE_BYTES, 4).slots) == 4 * PAGE_BYTES


def test_an_arena_cuts_it_into_slots_within_its_budget() -> None:
    arena = Arena(8 * PAGE_BYTES, slab_bytes=2 * PAGE_BYTES, map_slab=MappedAhead())
    slots = [arena.allocate(PAGE_BYTES) for _ in range(9)]
    assert slots.pop() is None
    for number, slot in enumerate(slots):
        assert slot is not None
        slot.view[:] = bytes([number]) * PAGE_BYTES
    assert [slot.view[7] for slot in slots if slot] == list(range(8))
    assert arena.mapped_bytes == 8 * PAGE_BYTES
    arena.check()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is resident so")
def test_populated_memory_is_resident_and_zero() -> None:
    memory = map_memory(16 << 20)
    before = resident_bytes()
    populate(memory)
    assert resident_bytes() - before >= 15 << 20
    assert not any(memory[:: 1 << 12])


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
