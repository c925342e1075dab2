"""The plain ways of moving bytes, which the tiers are measured against: memcpy, and bare files."""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from backends.disk_frames import PAGE_BYTES, allows_direct_io
from kvstore.arena import slot_stride


def copy_in(plain: memoryview, payload: memoryview) -> None:
    """Fill ``plain`` with copies of ``payload``."""
    size = len(payload)
    for start in range(0, len(plain), size):
        plain[start : start + size] = payload


def copy_out(plain: memoryview, out: memoryview) -> None:
    """Copy all of ``plain`` into ``out``, piece over piece."""
    size = len(out)
    for start in range(0, len(plain), size):
        out[:] = plain[start : start + size]


class BareFiles:
    """The plain way: one file a block, past the page cache, read by ``num_threads`` threads."""

    def __init__(self, folder: Path, num_blocks: int, payload: memoryview, num_threads: int) -> None:
        folder.mkdir()
        self._paths = [folder / str(number) for number in range(num_blocks)]
        self._buffer = memoryview(mmap.mmap(-1, PAGE_BYTES + slot_stride(len(payload))))
        self._buffer[PAGE_BYTES : PAGE_BYTES + len(payload)] = payload
        self._threads = ThreadPoolExecutor(num_threads)
        self._num_threads = num_threads
        self._flags = os.O_DIRECT if allows_direct_io(folder / "probe") else 0

    def write_all(self) -> None:
        """Write every file anew, one after the other, as a single writer does."""
        for path in self._paths:
            path.unlink(missing_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | self._flags, 0o600)
            os.pwritev(descriptor, [self._buffer], 0)
            os.close(descriptor)

    def read_all(self) -> None:
        """Read every file, each thread into a buffer of its own; nothing is verified."""
        list(self._threads.map(self._read_some, range(self._num_threads)))

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    def _read_some(self, start: int) -> None:
        buffer = memoryview(mmap.mmap(-1, len(self._buffer)))
        for path in self._paths[start :: self._num_threads]:
            descriptor = os.open(path, os.O_RDONLY | self._flags)
            os.preadv(descriptor, [buffer], 0)
            os.close(descriptor)
