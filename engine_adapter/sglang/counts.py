"""What the backend counts, and how fast pages moved."""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple

COUNTS = {
    "pages_looked_up": "Pages that SGLang asked for.",
    "pages_found": "Those of them that the store had, up to the first gap.",
    "pages_loaded": "Pages that were loaded into SGLang's host memory.",
    "pages_not_loaded": "Pages that were found and not loaded: gone, late or broken.",
    "pages_stored": "Pages that were stored, or were there already.",
    "pages_refused": "Pages that the store did not take: no room, or too much on its way.",
    "pages_compared": "Pages that mode verify has compared with what SGLang computed again.",
    "pages_wrong": "Those of them that differed, and that are kept out since.",
}
_MOST_MOVES = 4096
_BETWEEN_S = 60.0


class Moved(NamedTuple):
    """One batch of pages that was moved, and how fast."""

    num_pages: int
    gb_per_s: float


class Counts:
    """Counts since the start, by name, and batches moved since they were taken last. Thread-safe."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(COUNTS, 0)
        self._moves: dict[str, list[Moved]] = {"loaded": [], "stored": []}
        self._told: dict[str, int] = {}
        self._told_s = float("-inf")
        self._lock = Lock()

    def count(self, name: str, amount: int = 1) -> None:
        """Count something that happened."""
        with self._lock:
            self._counts[name] += amount

    def moved(self, way: str, num_pages: int, nbytes: int, seconds: float) -> None:
        """Note a batch that was ``loaded`` or ``stored``."""
        if num_pages:
            with self._lock:
                self._moves[way].append(Moved(num_pages, nbytes / max(seconds, 1e-9) / 1e9))
                del self._moves[way][:-_MOST_MOVES]

    def all(self) -> dict[str, int]:
        """Return the counts since the start."""
        with self._lock:
            return dict(self._counts)

    def news(self, now_s: float) -> str | None:
        """Return all counts in words if they have changed, once a minute at most. ``now_s`` is the time."""
        with self._lock:
            if now_s - self._told_s < _BETWEEN_S or self._counts == self._told:
                return None
            self._told, self._told_s = dict(self._counts), now_s
            return ", ".join(f"{name.replace('_', ' ')}: {num}" for name, num in self._told.items() if num)

    def take_moves(self, way: str) -> list[Moved]:
        """Return the batches since the last call."""
        with self._lock:
            moves, self._moves[way] = self._moves[way], []
            return moves
