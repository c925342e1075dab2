from __future__ import annotations

import pytest

from backends.pagelock import PageLocker, cuda_page_locker
from kvstore.arena import PAGE_BYTES, Arena


class Driver:
    """A driver that locks up to ``limit_bytes`` and keeps what is locked, by address."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.locked: dict[int, int] = {}

    def register(self, address: int, nbytes: int) -> int:
        if sum(self.locked.values()) + nbytes > self.limit_bytes:
            return 2
        self.locked[address] = nbytes
        return 0

    def unregister(self, address: int) -> int:
        del self.locked[address]
        return 0


def test_slabs_are_locked_and_unlocked_by_address() -> None:
    driver = Driver(limit_bytes=1 << 30)
    arena = Arena(
        4 * PAGE_BYTES, slab_bytes=2 * PAGE_BYTES, lock_pages=PageLocker(driver.register, driver.unregister)
    )
    slots = [arena.allocate(PAGE_BYTES) for _ in range(4)]
    assert list(driver.locked.values()) == [2 * PAGE_BYTES] * 2
    assert all(address % PAGE_BYTES == 0 for address in driver.locked)
    assert None not in slots
    arena.close()
    assert driver.locked == {}


def test_what_the_driver_refuses_stays_pageable_and_is_counted() -> None:
    driver = Driver(limit_bytes=2 * PAGE_BYTES)
    locker = PageLocker(driver.register, driver.unregister)
    arena = Arena(4 * PAGE_BYTES, slab_bytes=2 * PAGE_BYTES, lock_pages=locker)
    assert all(arena.allocate(PAGE_BYTES) for _ in range(4))
    assert (len(driver.locked), locker.refused_bytes) == (1, 2 * PAGE_BYTES)
    arena.close()
    assert driver.locked == {}


def test_without_cuda_there_is_no_hook() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert cuda_page_locker() is None


def test_with_cuda_an_arena_is_page_locked() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this machine has no GPU")
    locker = cuda_page_locker()
    assert isinstance(locker, PageLocker)
    arena = Arena(1 << 20, lock_pages=locker)
    slot = arena.allocate(1 << 20)
    assert slot is not None
    assert locker.refused_bytes == 0
    assert torch.frombuffer(slot.view, dtype=torch.uint8).is_pinned()
    slot.free()
    arena.close()
