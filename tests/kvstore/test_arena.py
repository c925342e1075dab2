from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvstore.arena import PAGE_BYTES, Arena, Slot, slot_stride
from kvstore.errors import ConfigError, InvariantError


def take(arena: Arena, nbytes: int) -> Slot:
    slot = arena.allocate(nbytes)
    assert slot is not None
    return slot


def mapped_memory_bytes() -> int:
    """What the kernel says this process has mapped."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * PAGE_BYTES


def test_a_slot_has_the_length_asked_for_and_takes_whole_pages() -> None:
    slot = take(Arena(10 * PAGE_BYTES), PAGE_BYTES + 1)
    assert (len(slot.view), slot.view.format, slot.view.readonly) == (PAGE_BYTES + 1, "B", False)
    assert slot.stride_bytes == 2 * PAGE_BYTES == slot_stride(PAGE_BYTES + 1)


def test_slots_do_not_overlap() -> None:
    arena = Arena(8 * PAGE_BYTES)
    slots = [take(arena, PAGE_BYTES) for _ in range(8)]
    for number, slot in enumerate(slots):
        slot.view[:] = bytes([number]) * PAGE_BYTES
    assert [bytes(slot.view) for slot in slots] == [bytes([number]) * PAGE_BYTES for number in range(8)]


def test_the_budget_is_used_up_to_its_last_slot_and_never_exceeded() -> None:
    arena = Arena(7 * PAGE_BYTES, slab_bytes=2 * PAGE_BYTES)
    slots = [take(arena, 1) for _ in range(7)]
    assert arena.allocate(1) is None
    assert arena.mapped_bytes == arena.used_bytes == 7 * PAGE_BYTES
    slots[3].free()
    assert take(arena, 1).stride_bytes == PAGE_BYTES
    arena.check()


def test_a_budget_smaller_than_a_slab_is_fully_usable() -> None:
    arena = Arena(3 * PAGE_BYTES)
    assert [arena.allocate(PAGE_BYTES) is not None for _ in range(4)] == [True, True, True, False]


def test_a_slot_larger_than_a_slab_gets_a_slab_of_its_own() -> None:
    arena = Arena(64 * PAGE_BYTES, slab_bytes=4 * PAGE_BYTES)
    assert len(take(arena, 10 * PAGE_BYTES).view) == 10 * PAGE_BYTES
    assert arena.mapped_bytes == 10 * PAGE_BYTES


def test_an_empty_slab_makes_room_for_another_slot_size() -> None:
    arena = Arena(8 * PAGE_BYTES, slab_bytes=8 * PAGE_BYTES)
    take(arena, PAGE_BYTES).free()
    assert (arena.used_bytes, arena.mapped_bytes) == (0, 8 * PAGE_BYTES)
    assert take(arena, 8 * PAGE_BYTES).stride_bytes == 8 * PAGE_BYTES
    arena.check()


def test_a_class_keeps_one_empty_slab_and_gives_the_others_back() -> None:
    arena = Arena(8 * PAGE_BYTES, slab_bytes=2 * PAGE_BYTES)
    for slot in [take(arena, PAGE_BYTES) for _ in range(8)]:
        slot.free()
    assert (arena.used_bytes, arena.mapped_bytes) == (0, 2 * PAGE_BYTES)
    arena.check()


def test_memory_goes_back_to_the_system() -> None:
    before = mapped_memory_bytes()
    arena = Arena(512 * 1024 * 1024)
    slots = [take(arena, 64 * 1024 * 1024) for _ in range(8)]
    assert mapped_memory_bytes() - before >= 512 * 1024 * 1024
    for slot in slots:
        slot.free()
    assert mapped_memory_bytes() - before < 128 * 1024 * 1024
    arena.close()
    assert mapped_memory_bytes() - before < 64 * 1024 * 1024


def test_a_second_free_is_an_error_and_changes_nothing() -> None:
    arena = Arena(4 * PAGE_BYTES)
    slot = take(arena, 1)
    slot.free()
    with pytest.raises(InvariantError, match="freed twice"):
        slot.free()
    assert len(slot.view) == 0
    arena.check()


def test_a_view_that_outlives_its_arena_stays_readable() -> None:
    arena = Arena(4 * PAGE_BYTES)
    slot = take(arena, 5)
    slot.view[:] = b"hello"
    view = slot.view
    arena.close()
    slot.free()
    assert bytes(view) == b"hello"
    arena.close()
    assert arena.allocate(1) is None
    assert (arena.used_bytes, arena.mapped_bytes) == (0, 0)


def test_every_slab_is_page_locked_once_and_unlocked_before_it_goes() -> None:
    locked: list[int] = []

    def lock(memory: memoryview) -> Callable[[], None]:
        nbytes = len(memory)
        locked.append(nbytes)
        return lambda: locked.remove(nbytes)

    arena = Arena(9 * PAGE_BYTES, slab_bytes=2 * PAGE_BYTES, lock_pages=lock)
    small = [take(arena, PAGE_BYTES) for _ in range(4)]
    assert locked == [2 * PAGE_BYTES, 2 * PAGE_BYTES]
    for slot in small:
        slot.free()
    assert locked == [2 * PAGE_BYTES]
    take(arena, 8 * PAGE_BYTES)
    assert locked == [8 * PAGE_BYTES]
    arena.close()
    assert locked == []


def test_a_failed_page_lock_leaves_nothing_behind() -> None:
    def refuse(_memory: memoryview) -> Callable[[], None]:
        raise RuntimeError("no page can be locked")

    arena = Arena(4 * PAGE_BYTES, lock_pages=refuse)
    with pytest.raises(RuntimeError):
        arena.allocate(1)
    assert arena.mapped_bytes == 0
    arena.check()


def test_more_than_the_machine_has_is_no_room() -> None:
    assert Arena(1 << 62).allocate(1 << 61) is None


@pytest.mark.parametrize(("budget", "slab"), [(-1, 4096), (4096, 0)])
def test_absurd_sizes_are_refused(budget: int, slab: int) -> None:
    with pytest.raises(ConfigError):
        Arena(budget, slab_bytes=slab)


def test_threads_share_the_budget_exactly() -> None:
    arena = Arena(64 * PAGE_BYTES, slab_bytes=4 * PAGE_BYTES)
    wrong: list[str] = []

    def work(number: int) -> None:
        mark = bytes([number])
        for step in range(400):
            slot = arena.allocate((1 + (step + number) % 3) * PAGE_BYTES)
            if slot is None:
                wrong.append("no room although the budget covers all threads")
                return
            slot.view[:] = mark * len(slot.view)
            if bytes(slot.view) != mark * len(slot.view):
                wrong.append("two threads share a slot")
            slot.free()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    arena.check()
    assert (wrong, arena.used_bytes) == ([], 0)


class ArenaMachine(RuleBasedStateMachine):
    """Any order of allocations and frees keeps every slot's bytes and the budget."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(24 * PAGE_BYTES, slab_bytes=4 * PAGE_BYTES)
        self.slots: list[tuple[Slot, int]] = []
        self.num_made = 0

    @rule(num_pages=st.sampled_from([1, 2, 3, 5]), odd_bytes=st.integers(0, 100))
    def allocate(self, num_pages: int, odd_bytes: int) -> None:
        slot = self.arena.allocate(num_pages * PAGE_BYTES - odd_bytes)
        if slot is None:
            assert self.arena.mapped_bytes + num_pages * PAGE_BYTES > self.arena.budget_bytes
            return
        self.num_made = (self.num_made + 1) % 256
        slot.view[:] = bytes([self.num_made]) * len(slot.view)
        self.slots.append((slot, self.num_made))

    @precondition(lambda self: self.slots)
    @rule(choice=st.integers(0, 1000))
    def free(self, choice: int) -> None:
        slot, mark = self.slots.pop(choice % len(self.slots))
        assert bytes(slot.view) == bytes([mark]) * len(slot.view)
        slot.free()

    @invariant()
    def everything_adds_up(self) -> None:
        self.arena.check()
        assert self.arena.used_bytes == sum(slot.stride_bytes for slot, _ in self.slots)

    def teardown(self) -> None:
        for slot, mark in self.slots:
            assert bytes(slot.view) == bytes([mark]) * len(slot.view)
        self.arena.close()


ArenaMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestArenaMachine = ArenaMachine.TestCase
