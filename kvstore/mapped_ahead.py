"""Memory for slabs, mapped before it is needed: the first use of fresh memory costs more than a copy."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from kvstore.slab import SlabMemory, map_private_slab

_MADV_POPULATE_WRITE = 23  # of Linux 5.14, not named by Python


class _Shape(NamedTuple):
    stride_bytes: int
    num_slots: int


class MappedAhead:
    """Maps private memory for an arena, which calls it under a lock of its own (``MapSlab``).

    While slabs of one shape are asked for again and again, one more than those is mapped, its pages taken,
    on a thread of its own: so much is used beside the arena's budget.
    """

    def __init__(self, take_pages: Callable[[memoryview], None] | None = None) -> None:
        self._take_pages = take_pages or populate
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="prefixd-memory")
        self._last: _Shape | None = None
        self._next: Future[SlabMemory] | None = None

    def __call__(self, stride_bytes: int, num_slots: int) -> SlabMemory:
        """Return memory for so many slots. Raises ``OSError``: there is none."""
        shape = _Shape(stride_bytes, num_slots)
        is_first, is_same = self._last is None, self._last == shape
        coming, self._next, self._last = self._next, None, shape
        if coming is not None and is_same and coming.exception() is None:
            memory = coming.result()
        else:
            memory = map_private_slab(*shape)
        if not (is_first or is_same):
            return memory
        with suppress(RuntimeError):  # no thread is to be had, as when the process ends
            self._next = self._worker.submit(self._mapped, shape)
        return memory

    def _mapped(self, shape: _Shape) -> SlabMemory:
        memory = map_private_slab(*shape)
        self._take_pages(memory.slots)
        return memory


def populate(memory: memoryview) -> None:
    """Have the kernel give all pages now; other threads run meanwhile.

    One that cannot gives each at its first use, as always.
    """
    if sys.platform == "linux":
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(start), ctypes.c_size_t(len(memory)), ctypes.c_int(_MADV_POPULATE_WRITE)
        )
