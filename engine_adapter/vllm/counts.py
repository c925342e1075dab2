"""What the connector counts, for vLLM's log and metrics."""

from __future__ import annotations

from collections.abc import Mapping

NAMES: Mapping[str, str] = {
    "blocks_looked_up": "Whole blocks of prompts that were looked up.",
    "blocks_found": "Blocks that the store had when a prompt was looked up.",
    "tokens_loaded": "Tokens that were ordered to be loaded instead of computed.",
    "tokens_observed": "Tokens that mode observe would have loaded.",
    "blocks_stored": "Blocks that were stored.",
    "blocks_not_loaded": "Blocks whose load failed or was given up, and that were computed instead.",
    "loads_failed": "Requests whose load failed or was given up.",
    "blocks_compared": "Blocks that mode verify has computed and compared.",
    "blocks_wrong": "Blocks that mode verify has found wrong, and that are kept out since.",
    "faults": "Errors that were caught and made into misses.",
}


class Counts:
    """Counts since they were taken last, by name."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def count(self, name: str, amount: int = 1) -> None:
        """Count something that happened."""
        self._counts[name] = self._counts.get(name, 0) + amount

    def add(self, counts: Mapping[str, int]) -> None:
        """Take in what somebody else has counted."""
        for name, amount in counts.items():
            self.count(name, amount)

    def take(self) -> dict[str, int]:
        """Return all counts, and begin anew."""
        counts, self._counts = self._counts, {}
        return counts
