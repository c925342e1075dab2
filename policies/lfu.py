"""Least frequently used first, with counts that fade."""

from __future__ import annotations

from collections.abc import Iterator

from policies.ghosts import Ghosts
from policies.leaf_queue import LeafQueue
from policies.leaves import Block, LeafOrder, Tour

_LEVELS = 16
_TURNS_TO_HALVE = 8


class _CountedBlock(Block):
    __slots__ = ("num_uses", "period")

    def __init__(self, parent: bytes, queue: LeafQueue, num_uses: int, period: int) -> None:
        super().__init__(parent, queue)
        self.num_uses = num_uses
        self.period = period


class LeafFirstLFU(LeafOrder[_CountedBlock]):
    """Evicts the leaf that was used least often; of those used alike, the one used longest ago.

    Counts halve each time that eight times as many uses were made as there are blocks, so that what was
    wanted long ago does not stay for good. Frequencies are told apart by powers of two: a queue for each.
    The counts of blocks that left are kept for as many as were ever held at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._levels = [LeafQueue() for _ in range(_LEVELS)]
        self._ghosts = Ghosts[tuple[int, int]]()
        self._most = 0
        self._period = 0
        self._num_uses_left = 0

    def _use(self, key: bytes, block: _CountedBlock, now_s: float) -> None:  # noqa: ARG002 - not timed
        self._count()
        block.num_uses = self._faded(block.num_uses, block.period) + 1
        block.period = self._period
        self._move(key, block, self._level(block.num_uses))

    def _newcomer(self, key: bytes, parent: bytes, now_s: float) -> _CountedBlock:  # noqa: ARG002 - likewise
        self._most = max(self._most, len(self._blocks) + 1)
        self._count()
        before = self._ghosts.pop(key)
        num_uses = 1 + (self._faded(*before) if before else 0)
        return _CountedBlock(parent, self._level(num_uses), num_uses, self._period)

    def _left(self, key: bytes, block: _CountedBlock) -> None:
        self._ghosts.add(key, (block.num_uses, block.period))
        self._ghosts.forget(self._most)

    def _queues(self) -> Iterator[LeafQueue]:
        yield from self._levels

    def _order(self, tour: Tour[_CountedBlock]) -> Iterator[bytes]:
        while True:
            heads = [
                (level + self._blocks[key].period, self._blocks[key].stamp, queue)
                for level, queue in enumerate(self._levels)
                if (key := tour.peek(queue)) is not None
            ]
            if not heads:
                return
            key = tour.take(min(heads, key=lambda head: head[:2])[2])
            if key is not None:
                tour.expose_parent(key)
                yield key

    def _level(self, num_uses: int) -> LeafQueue:
        return self._levels[min(num_uses.bit_length(), _LEVELS) - 1]

    def _faded(self, num_uses: int, period: int) -> int:
        return num_uses >> (self._period - period)

    def _count(self) -> None:
        if not self._num_uses_left:
            self._period += 1
            self._num_uses_left = _TURNS_TO_HALVE * max(1, len(self._blocks))
        self._num_uses_left -= 1
