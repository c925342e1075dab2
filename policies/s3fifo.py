"""Three queues, first in first out: newcomers on probation, the rest, and who left."""

from __future__ import annotations

from collections.abc import Iterator

from policies.ghosts import Ghosts
from policies.leaf_queue import LeafQueue
from policies.leaves import Block, LeafOrder, Tour

_PROBATION_SHARE = 0.1
_MOST_USES = 3


class _QueuedBlock(Block):
    __slots__ = ("num_uses",)

    def __init__(self, parent: bytes, queue: LeafQueue) -> None:
        super().__init__(parent, queue)
        self.num_uses = 0  # since it came in, or came round


class LeafFirstS3FIFO(LeafOrder[_QueuedBlock]):
    """S3-FIFO (Yang and others, 2023) over leaves.

    A block comes in on probation, which takes about a tenth of all. When its turn has come it stays if it
    was used meanwhile, and goes if it was not; one that comes back soon skips probation. Among those that
    stay, each use (of at most three) lets a block come round once more. The one at the head of a queue has
    not been used: this is restored after every change, so that asking who goes changes nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._probation, self._main = LeafQueue(), LeafQueue()
        self._ghosts = Ghosts[bool]()
        self._num_on_probation = 0

    def insert(self, key: bytes, parent: bytes, now_s: float) -> None:
        super().insert(key, parent, now_s)
        self._come_round()

    def remove(self, key: bytes) -> None:
        super().remove(key)
        self._come_round()

    def _use(self, key: bytes, block: _QueuedBlock, now_s: float) -> None:  # noqa: ARG002 - not timed
        block.num_uses = min(_MOST_USES, block.num_uses + 1)
        self._come_round()

    def _newcomer(self, key: bytes, parent: bytes, now_s: float) -> _QueuedBlock:  # noqa: ARG002 - likewise
        if self._ghosts.pop(key):
            return _QueuedBlock(parent, self._main)
        self._num_on_probation += 1
        return _QueuedBlock(parent, self._probation)

    def _left(self, key: bytes, block: _QueuedBlock) -> None:
        if block.queue is self._probation:
            self._num_on_probation -= 1
            self._ghosts.add(key, fact=True)
            self._ghosts.forget(len(self._blocks))

    def _come_round(self) -> None:
        while (key := self._probation.head()) and (block := self._blocks[key]).num_uses:
            self._num_on_probation -= 1
            block.num_uses = 0
            self._move(key, block, self._main)
        while (key := self._main.head()) and (block := self._blocks[key]).num_uses:
            block.num_uses -= 1
            self._move(key, block, self._main)

    def _queues(self) -> Iterator[LeafQueue]:
        yield self._probation
        yield self._main

    def _order(self, tour: Tour[_QueuedBlock]) -> Iterator[bytes]:
        num_left, num_on_probation = len(self._blocks), self._num_on_probation
        while True:
            first, second = self._main, self._probation
            if num_on_probation >= _PROBATION_SHARE * num_left:
                first, second = second, first
            key = tour.take(first) or tour.take(second)
            if key is None:
                return
            num_left -= 1
            num_on_probation -= self._blocks[key].queue is self._probation
            tour.expose_parent(key)
            yield key
