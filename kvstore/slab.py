"""A slab of the arena: one mapping of memory, cut into equal slots."""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Callable, MutableSequence
from contextlib import suppress
from typing import NamedTuple

from kvstore.errors import InvariantError

PAGE_BYTES = mmap.PAGESIZE

Unlock = Callable[[], None]
"""Undoes what was done to a slab's memory when it was mapped."""


def slot_stride(nbytes: int) -> int:
    """Return the bytes that a slot for ``nbytes`` occupies: whole pages, at least one."""
    return -(-max(nbytes, 1) // PAGE_BYTES) * PAGE_BYTES


def nothing_to_undo() -> None:
    """Leave pageable memory as it is."""


class SlabMemory(NamedTuple):
    """What a slab is made of: its slots' bytes, and how often each slot was given back.

    ``descriptor`` names the memory to other processes; -1: it is ours alone. ``close`` lets go of it.
    """

    slots: memoryview
    generations: MutableSequence[int]
    descriptor: int = -1
    close: Callable[[], None] = nothing_to_undo


MapSlab = Callable[[int, int], SlabMemory]
"""Maps memory for (bytes of a slot, number of slots). Raises ``OSError``: there is none."""


class Slab:
    """One mapping for ``owner``, cut into slots; unmapped when the last view of it is let go."""

    __slots__ = ("free", "memory", "nbytes", "num_slots", "number", "owner", "stride_bytes", "unlock")

    def __init__(self, stride_bytes: int, memory: SlabMemory, owner: bytes = b"", number: int = 0) -> None:
        self.stride_bytes = stride_bytes
        self.nbytes = len(memory.slots)
        self.num_slots = self.nbytes // stride_bytes
        self.memory = memory
        self.owner = owner
        self.number = number
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

    def is_for(self, nbytes: int, owner: bytes) -> bool:
        """Say whether its slots are such as blocks of ``nbytes`` of this owner lie in."""
        return self.owner == owner and self.stride_bytes == slot_stride(nbytes)

    def put_back(self, offset: int) -> None:
        """Make a slot free again; whoever still reads it can tell by its generation."""
        self.memory.generations[offset // self.stride_bytes] += 1
        self.free.append(offset)

    def let_go(self) -> None:
        """Undo what was done to the memory, and let go of it."""
        self.unlock()
        self.memory.close()

    def check(self) -> None:
        """Raise ``InvariantError`` unless every free slot is one of ours and free once."""
        slots = set(range(0, self.nbytes, self.stride_bytes))
        if len(set(self.free)) != len(self.free) or not slots.issuperset(self.free):
            raise InvariantError("arena: free slots of a slab")


def map_private_slab(stride_bytes: int, num_slots: int) -> SlabMemory:
    """Return memory that no other process can see."""
    return SlabMemory(map_memory(stride_bytes * num_slots), array("Q", bytes(8 * num_slots)))


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
