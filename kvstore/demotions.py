"""Blocks that memory has evicted and that wait to be written below, where a clear has to find them."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock


@dataclass(slots=True, eq=False)
class Demotion:
    """The writes of one block that are queued for one tier; a cancelled one must leave nothing there."""

    bit: int
    key: bytes
    num_queued: int = 0
    is_cancelled: bool = False


class Demotions:
    """All of them, by tier and key. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, bytes], Demotion] = {}
        self._lock = Lock()

    def begin(self, bit: int, key: bytes) -> Demotion:
        """Note one more write; ``end`` must follow when it is done or dropped."""
        with self._lock:
            demotion = self._waiting.setdefault((bit, key), Demotion(bit, key))
            demotion.num_queued += 1
            return demotion

    def end(self, demotion: Demotion) -> None:
        """Note that one of the writes is over."""
        with self._lock:
            demotion.num_queued -= 1
            if not demotion.num_queued and not demotion.is_cancelled:
                del self._waiting[demotion.bit, demotion.key]

    def cancel(self, bit: int, key: bytes) -> bool:
        """Call off the writes of a block to a tier; says whether there were any."""
        with self._lock:
            demotion = self._waiting.pop((bit, key), None)
            if demotion is not None:
                demotion.is_cancelled = True
            return demotion is not None

    def waiting(self, bit: int) -> list[bytes]:
        """Return the keys that wait for a tier."""
        with self._lock:
            return [key for waits_for, key in self._waiting if waits_for == bit]
