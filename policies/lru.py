"""Least recently used first, leaves before their parents."""

from __future__ import annotations

from collections.abc import Iterator

from policies.leaf_queue import LeafQueue
from policies.leaves import Block, LeafOrder, Tour


class LeafFirstLRU(LeafOrder[Block]):
    """Evicts the leaf that was used longest ago; a parent becomes a leaf when its children are gone.

    Cost: O(1) a use, O(log n) an eviction.
    """

    def __init__(self) -> None:
        super().__init__()
        self._queue = LeafQueue()

    def _use(self, key: bytes, block: Block, now_s: float) -> None:  # noqa: ARG002 - ordered, not timed
        self._move(key, block, self._queue)

    def _newcomer(self, key: bytes, parent: bytes, now_s: float) -> Block:  # noqa: ARG002 - likewise
        return Block(parent, self._queue)

    def _left(self, key: bytes, block: Block) -> None:
        """Nothing is remembered."""

    def _queues(self) -> Iterator[LeafQueue]:
        yield self._queue

    def _order(self, tour: Tour[Block]) -> Iterator[bytes]:
        while (key := tour.take(self._queue)) is not None:
            yield key
            tour.expose_parent(key)
