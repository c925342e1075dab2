"""A disk tier behind a line whose rate changes on command, and even within one load."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from threading import Event, Lock
from typing import Any

from backends import builtin
from backends.disk import DiskBackend
from backends.wrapper import Wrapper

_SLOWER = 10.0


class MoodyLine:
    """The line: frames that are read take it in turn. Writes are not slowed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._bytes_per_s = math.inf
        self._slower_after_bytes: int | None = None
        self._go_on = Event()
        self._go_on.set()
        self._free_s = 0.0
        self._num_bytes = 0

    def set(self, bytes_per_s: float, slower_after_bytes: int | None, *, is_stalled: bool) -> None:
        """Have this rate, a tenth of it once so many bytes of a load have come; stalled, nothing comes."""
        with self._lock:
            self._bytes_per_s, self._slower_after_bytes = bytes_per_s, slower_after_bytes
            self._free_s = 0.0
        if is_stalled:
            self._go_on.clear()
        else:
            self._go_on.set()

    def begin(self) -> None:
        """Begin to count a load's bytes."""
        with self._lock:
            self._num_bytes = 0

    def take(self, nbytes: int) -> None:
        """Wait until so many bytes have come."""
        self._go_on.wait()
        with self._lock:
            self._num_bytes += nbytes
            is_slower = self._slower_after_bytes is not None and self._num_bytes > self._slower_after_bytes
            rate = self._bytes_per_s / (_SLOWER if is_slower else 1.0)
            self._free_s = max(self._free_s, time.monotonic()) + nbytes / rate
            left_s = self._free_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)


class SlowDisk(Wrapper):
    """A disk behind the line."""

    def __init__(self, disk: DiskBackend, line: MoodyLine) -> None:
        super().__init__(disk)
        self._line = line

    def get_into(self, key: bytes, header: memoryview, payload: memoryview) -> int | None:
        nbytes = self._backend.get_into(key, header, payload)
        self._line.take(nbytes or 0)
        return nbytes

    def put(self, key: bytes, header: memoryview, payload: memoryview) -> None:
        self._backend.put(key, header, payload)


def slow_disks(line: MoodyLine) -> None:
    """Put every disk tier that is opened from now on behind ``line``."""
    open_disk: Callable[..., Any] = builtin.BUILT_IN["disk"]
    builtin.BUILT_IN["disk"] = lambda **options: SlowDisk(open_disk(**options), line)
