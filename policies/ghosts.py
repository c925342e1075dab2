"""Blocks that have left, remembered for a while."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class Ghosts(Generic[T]):
    """What is worth knowing of the blocks that left last, at most so many. Not thread-safe."""

    def __init__(self) -> None:
        self._facts: OrderedDict[bytes, T] = OrderedDict()

    def add(self, key: bytes, fact: T) -> None:
        """Remember ``key``."""
        self._facts[key] = fact

    def forget(self, most: int) -> list[T]:
        """Forget who left first, to be ``most`` at most; returns what was known of them."""
        forgotten = []
        while len(self._facts) > most:
            forgotten.append(self._facts.popitem(last=False)[1])
        return forgotten

    def pop(self, key: bytes) -> T | None:
        """Return what is remembered of ``key`` and forget it; ``None``: nothing."""
        return self._facts.pop(key, None)

    def __len__(self) -> int:
        return len(self._facts)

    def __contains__(self, key: bytes) -> bool:
        return key in self._facts
