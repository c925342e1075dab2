"""Adaptive replacement: blocks used once and blocks used again, and a share of room between them."""

from __future__ import annotations

from collections.abc import Iterator

from policies.ghosts import Ghosts
from policies.leaf_queue import LeafQueue
from policies.leaves import Block, LeafOrder, Tour


class LeafFirstARC(LeafOrder[Block]):
    """ARC (Megiddo and Modha, 2003) over leaves.

    Blocks used once stand in one queue, blocks used again in the other, each by last use. A block that
    comes back soon after it left tells which of them was cut too short, and moves the share that the
    first is meant to have. As many ghosts are kept as blocks were ever held at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._once, self._again = LeafQueue(), LeafQueue()
        self._once_ghosts, self._again_ghosts = Ghosts[None](), Ghosts[None]()
        self._num_once = 0
        self._capacity = 0
        self._target = 0.0  # how many of the blocks should be those used once

    def _use(self, key: bytes, block: Block, now_s: float) -> None:  # noqa: ARG002 - not timed
        if block.queue is self._once:
            self._num_once -= 1
        self._move(key, block, self._again)

    def _newcomer(self, key: bytes, parent: bytes, now_s: float) -> Block:  # noqa: ARG002 - likewise
        num_resident = len(self._blocks) + 1
        self._capacity = max(self._capacity, num_resident)
        num_once, num_again = len(self._once_ghosts), len(self._again_ghosts)
        if key in self._once_ghosts:
            self._once_ghosts.pop(key)
            self._target = min(self._capacity, self._target + max(1.0, num_again / num_once))
        elif key in self._again_ghosts:
            self._again_ghosts.pop(key)
            self._target = max(0.0, self._target - max(1.0, num_once / num_again))
        else:
            self._num_once += 1
            self._forget(num_resident)
            return Block(parent, self._once)
        self._forget(num_resident)
        return Block(parent, self._again)

    def _left(self, key: bytes, block: Block) -> None:
        is_once = block.queue is self._once
        self._num_once -= is_once
        (self._once_ghosts if is_once else self._again_ghosts).add(key, None)
        self._forget(len(self._blocks))

    def _forget(self, num_resident: int) -> None:
        """Keep as many of those used once, here or gone, as there is room, and twice as many in all."""
        self._once_ghosts.forget(self._capacity - self._num_once)
        self._again_ghosts.forget(2 * self._capacity - num_resident - len(self._once_ghosts))

    def _queues(self) -> Iterator[LeafQueue]:
        yield self._once
        yield self._again

    def _order(self, tour: Tour[Block]) -> Iterator[bytes]:
        num_once = self._num_once
        while True:
            first, second = self._once, self._again
            if num_once <= self._target:
                first, second = second, first
            key = tour.take(first) or tour.take(second)
            if key is None:
                return
            num_once -= self._blocks[key].queue is self._once
            tour.expose_parent(key)
            yield key
