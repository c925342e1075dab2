"""Turns at a file: any number of readers, or the one who rewrites its header."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class Turns:
    """Keeps readers of a file and who rewrites its header apart: no header is read half. Thread-safe."""

    def __init__(self) -> None:
        self._reading: Counter[bytes] = Counter()
        self._rewriting: set[bytes] = set()
        self._changed = Condition()

    @contextmanager
    def reading(self, key: bytes) -> Iterator[None]:
        """Read a file; waits for a rewriting of its header, which is short."""
        with self._changed:
            self._changed.wait_for(lambda: key not in self._rewriting)
            self._reading[key] += 1
        try:
            yield
        finally:
            with self._changed:
                self._reading[key] -= 1
                if not self._reading[key]:
                    del self._reading[key]
                if self._rewriting:
                    self._changed.notify_all()

    @contextmanager
    def rewriting(self, key: bytes) -> Iterator[None]:
        """Rewrite a file's header; waits for those that read it, while others wait for this."""
        with self._changed:
            self._changed.wait_for(lambda: key not in self._rewriting)
            self._rewriting.add(key)
            self._changed.wait_for(lambda: key not in self._reading)
        try:
            yield
        finally:
            with self._changed:
                self._rewriting.discard(key)
                self._changed.notify_all()
