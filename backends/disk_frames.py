"""Reads and writes frames as files, past the page cache where the file system allows.

::

    file      | header 192 | zeros to 4096 | payload ...................................... |
    vectors   |      page (scratch)        | payload, in place          | rest (scratch)    |

Direct I/O wants aligned addresses and lengths. An arena's slot is aligned, so that all but a
last partial page is transferred in place; a payload at any other address goes through scratch.
One system call moves all of it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvstore.frame import HEADER_BYTES

PAGE_BYTES = 4096
_PADDING = bytes(PAGE_BYTES - HEADER_BYTES)


def padded(nbytes: int) -> int:
    """Return ``nbytes`` rounded up to whole pages."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


class FrameFiles:
    """Moves frames between files and memory; ``direct`` says whether past the page cache. Thread-safe.

    ``probe`` is a path at which a small file may be written to find that out.
    """

    def __init__(self, probe: Path) -> None:
        self.direct = allows_direct_io(probe)
        self._flags = os.O_CLOEXEC | (os.O_DIRECT if self.direct else 0)
        self._idle: deque[_Scratch] = deque()

    def write(self, path: Path, header: memoryview, payload: memoryview) -> None:
        """Write a new file. Raises ``OSError``; what was written by then is the caller's to remove."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | self._flags, 0o600)
        try:
            with self._scratch() as scratch:
                whole = payload[: self._bytes_in_place(payload)]
                rest = payload[len(whole) :]
                spare = scratch.at_least(self._transfer_bytes(rest))
                scratch.page[:HEADER_BYTES] = header
                scratch.page[HEADER_BYTES:] = _PADDING
                spare[: len(rest)] = rest
                expected = PAGE_BYTES + len(whole) + len(spare)
                if os.pwritev(descriptor, [scratch.page, whole, spare], 0) != expected:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if len(spare) > len(rest):
                os.ftruncate(descriptor, PAGE_BYTES + len(payload))
        finally:
            os.close(descriptor)

    def read(self, path: str, header: memoryview, payload: memoryview) -> bool:
        """Read a file; ``False`` when its payload has another length. Raises ``OSError``."""
        descriptor = os.open(path, os.O_RDONLY | self._flags)
        try:
            nbytes = PAGE_BYTES + len(payload)
            if os.fstat(descriptor).st_size != nbytes:
                return False
            with self._scratch() as scratch:
                whole = payload[: self._bytes_in_place(payload)]
                rest = payload[len(whole) :]
                spare = scratch.at_least(self._transfer_bytes(rest))
                if os.preadv(descriptor, [scratch.page, whole, spare], 0) != nbytes:
                    return False
                header[:] = scratch.page[:HEADER_BYTES]
                rest[:] = spare[: len(rest)]
            return True
        finally:
            os.close(descriptor)

    def rewrite_header(self, path: str, change: Callable[[bytes], bytes | None]) -> bytes | None:
        """Put what ``change`` makes of a file's header in its place, and return it; ``None``: it stays.

        Raises ``OSError``. Nobody may read the file meanwhile.
        """
        descriptor = os.open(path, os.O_RDWR | self._flags)
        try:
            with self._scratch() as scratch:
                if os.preadv(descriptor, [scratch.page], 0) != PAGE_BYTES:
                    return None
                before = bytes(scratch.page[:HEADER_BYTES])
                after = change(before)
                if after is not None and after != before:
                    scratch.page[:HEADER_BYTES] = after
                    if os.pwritev(descriptor, [scratch.page], 0) != PAGE_BYTES:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return after
        finally:
            os.close(descriptor)

    def _bytes_in_place(self, payload: memoryview) -> int:
        """Return how many leading bytes of ``payload`` need no scratch."""
        if not self.direct:
            return len(payload)
        if payload.readonly or not payload or _address(payload) % PAGE_BYTES:
            return 0
        return len(payload) // PAGE_BYTES * PAGE_BYTES

    def _transfer_bytes(self, rest: memoryview) -> int:
        return padded(len(rest)) if self.direct else 0

    @contextmanager
    def _scratch(self) -> Iterator[_Scratch]:
        try:
            scratch = self._idle.pop()
        except IndexError:
            scratch = _Scratch()
        yield scratch
        self._idle.append(scratch)


class _Scratch:
    """Aligned memory for one transfer at a time; kept and used again."""

    def __init__(self) -> None:
        self.page = memoryview(mmap.mmap(-1, PAGE_BYTES))
        self._spare = memoryview(mmap.mmap(-1, PAGE_BYTES))

    def at_least(self, nbytes: int) -> memoryview:
        if len(self._spare) < nbytes:
            self._spare = memoryview(mmap.mmap(-1, nbytes))
        return self._spare[:nbytes]


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def allows_direct_io(probe: Path) -> bool:
    """Say whether files beside ``probe``, which is written and removed, can be moved past the page cache."""
    if not hasattr(os, "O_DIRECT"):
        return False
    page = mmap.mmap(-1, PAGE_BYTES)
    try:
        descriptor = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC, 0o600)
        try:
            return os.pwritev(descriptor, [page], 0) == os.preadv(descriptor, [page], 0) == PAGE_BYTES
        finally:
            os.close(descriptor)
    except OSError as error:
        return error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}  # a full disk allows it as well
    finally:
        probe.unlink(missing_ok=True)
