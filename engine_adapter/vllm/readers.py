"""Who computes with blocks that its own step loads: what must be undone when such a load fails."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any


class Readers:
    """Requests of one step that have blocks which the step loads.

    vLLM shares blocks as soon as they are allocated: with requests of the same step, and through its prefix
    cache with later ones. Of a load that fails it has but one of them computed again, by one request, and
    trusts that this request lives to do so.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._loaded: set[int] = set()
        self._readers: list[tuple[Any, Sequence[int]]] = []

    def note_load(self, block_ids: Collection[int]) -> None:
        """Note blocks that are loaded in the step that is being planned."""
        self._loaded.update(block_ids)

    def note_admitted(self, request: Any, block_ids: Sequence[int]) -> None:
        """Note a request that was admitted with these blocks, after their loads."""
        if self._loaded and not self._loaded.isdisjoint(block_ids):
            self._readers.append((request, tuple(block_ids)))

    def undo(self, failed_ids: Collection[int]) -> set[int]:
        """End the step, and have each reader begin again at its first block of ``failed_ids``.

        Returns the blocks that nobody else may read: those, and what was computed behind them.
        """
        readers, self._readers = self._readers, []
        self._loaded.clear()
        spoilt = set[int]()
        for request, block_ids in readers if failed_ids else ():
            first = next((index for index, each in enumerate(block_ids) if each in failed_ids), None)
            if first is not None:
                spoilt.update(block_ids[first:])
                position = first * self._block_tokens
                request.num_computed_tokens = min(request.num_computed_tokens, position)
        return spoilt
