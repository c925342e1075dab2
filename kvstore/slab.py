"""A slab of the arena: one mapping of memory, cut into equal slots."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress

from kvstore.errors import InvariantError

Unlock = Callable[[], None]
"""Undoes what was done to a slab's memory when it was mapped."""


def nothing_to_undo() -> None:
    """Leave pageable memory as it is."""


class Slab:
    """One anonymous mapping, cut into slots; unmapped when the last view of it is let go."""

    __slots__ = ("free", "memory", "nbytes", "num_slots", "stride_bytes", "unlock")

    def __init__(self, stride_bytes: int, num_slots: int) -> None:
        self.stride_bytes = stride_bytes
        self.num_slots = num_slots
        self.nbytes = stride_bytes * num_slots
        self.memory = map_memory(self.nbytes)
        # Offsets of the free slots; the lowest is last, and taken first.
        self.free = list(range(self.nbytes - stride_bytes, -1, -stride_bytes))
        self.unlock: Unlock = nothing_to_undo

    @property
    def is_empty(self) -> bool:
        """Whether no slot is in use."""
        return len(self.free) == self.num_slots

    @property
    def used_bytes(self) -> int:
        """Bytes of the slots in use."""
        return self.nbytes - len(self.free) * self.stride_bytes

    def check(self) -> None:
        """Raise ``InvariantError`` unless every free slot is one of ours and free once."""
        slots = set(range(0, self.nbytes, self.stride_bytes))
        if len(set(self.free)) != len(self.free) or not slots.issuperset(self.free):
            raise InvariantError("arena: free slots of a slab")


def map_memory(nbytes: int) -> memoryview:
    """Return page-aligned memory of zeros, unmapped when its last view is let go.

    In huge pages where the kernel has them; a page is only taken when it is first used. Raises
    ``OSError`` when the machine has not so much.
    """
    # Private: a shared mapping, the default, gets no huge pages, and first use pays for each small one.
    region = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            region.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(region)
