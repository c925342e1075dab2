"""Memory that other processes of this machine may map: named by a descriptor, sealed against misuse.

A shared slab::

    | generation of slot 0, 1, 2 ... (8 bytes each) |  to the page's end  | slot 0 | slot 1 | slot 2 | ...
    '----------------- head: whole pages -----------'---------------------'-- stride_bytes each

Whoever gets its descriptor can map it to read, and in no way to write, shrink or grow.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import MutableSequence
from typing import NamedTuple, cast

from kvstore.slab import SlabMemory

_SEAL_FUTURE_WRITE = 0x0010  # of Linux 5.1, not named by Python 3.11
_FIXED_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_GENERATION_BYTES = 8

SLAB_NAME = "prefixd-slab"
"""What the system calls a slab's memory, as in ``/proc/PID/fd``."""


class SlabView(NamedTuple):
    """Another process's slab as it is seen here: read-only."""

    slots: memoryview
    generations: memoryview


def head_bytes(num_slots: int) -> int:
    """Return the bytes in front of the first of so many slots."""
    return -(-num_slots * _GENERATION_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE


def map_shared_slab(stride_bytes: int, num_slots: int) -> SlabMemory:
    """Return memory that others can map to read, by its descriptor. Raises ``OSError``: there is none."""
    head = head_bytes(num_slots)
    nbytes = head + stride_bytes * num_slots
    descriptor = _create(SLAB_NAME, nbytes)
    try:
        # At once, so that a machine without the memory says so here, and not where it is first used.
        os.posix_fallocate(descriptor, 0, nbytes)
        memory = memoryview(_map(descriptor, nbytes, mmap.MAP_POPULATE))
    except OSError:
        os.close(descriptor)
        raise
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _FIXED_SIZE | _SEAL_FUTURE_WRITE)
    generations = memory[: num_slots * _GENERATION_BYTES].cast("Q")
    return SlabMemory(
        memory[head:], cast("MutableSequence[int]", generations), descriptor, lambda: os.close(descriptor)
    )


def view_slab(descriptor: int, stride_bytes: int, num_slots: int) -> SlabView:
    """Map another process's slab to read it. Raises ``OSError`` or ``ValueError`` when it is none."""
    head = head_bytes(num_slots)
    # Populated: first use of each small page costs more than the copy from it.
    memory = memoryview(_map(descriptor, head + stride_bytes * num_slots, mmap.MAP_POPULATE, mmap.PROT_READ))
    return SlabView(memory[head:], memory[: num_slots * _GENERATION_BYTES].cast("Q"))


def create_staging(nbytes: int) -> tuple[memoryview, int]:
    """Return memory that another process may write to as well, and its descriptor, the caller's to close.

    Its size is sealed: a writer that shrinks it could end us. It takes memory as it is used.
    """
    descriptor = _create("prefixd-staging", nbytes)
    memory = memoryview(_map(descriptor, nbytes))
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _FIXED_SIZE)
    return memory, descriptor


def view_staging(descriptor: int, nbytes: int) -> memoryview:
    """Map another process's staging memory, to write to it. Raises ``OSError`` or ``ValueError``."""
    return memoryview(_map(descriptor, nbytes))


def _create(name: str, nbytes: int) -> int:
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, nbytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _map(
    descriptor: int, nbytes: int, flags: int = 0, protection: int = mmap.PROT_READ | mmap.PROT_WRITE
) -> mmap.mmap:
    return mmap.mmap(descriptor, nbytes, mmap.MAP_SHARED | flags, protection)
