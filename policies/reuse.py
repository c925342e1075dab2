"""Who is used again soonest, as far as can be told: the project's own policy."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from math import inf

from policies.ghosts import Ghosts
from policies.hazards import Hazards, Past
from policies.leaf_queue import LeafQueue
from policies.leaves import Block, LeafOrder, Tour

_GHOSTS_PER_BLOCK = 4
_LEAST_GHOSTS = 1024

# What the head of a class is worth, its place, and the number of the class.
_Rank = tuple[float, int, int]
_LAST: _Rank = (inf, 0, 0)


class _KnownBlock(Block):
    __slots__ = ("kind", "past")

    def __init__(self, parent: bytes, queue: LeafQueue, past: Past) -> None:
        super().__init__(parent, queue)
        self.past = past
        self.kind = past.kind()


class LeafFirstReuse(LeafOrder[_KnownBlock]):
    """Evicts the leaf that is least worth keeping, by when blocks like it were used again.

    Blocks alike (as many uses, as long a gap before the last one, followed by another block or not) form a
    class, whose leaves stand in a queue by last use. Of each class the one that has waited longest is asked
    for; of these the one with the lowest index (``Hazards``) goes. The heads are compared anew when time
    has moved on. Pasts are kept for four times as many blocks as were ever held at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._classes: dict[int, LeafQueue] = {}
        self._ghosts = Ghosts[Past]()
        self._hazards = Hazards()
        self._now_s = -inf
        self._most = 0
        self._ranks: dict[int, _Rank] | None = None

    def insert(self, key: bytes, parent: bytes, now_s: float) -> None:
        self._hear(now_s)
        super().insert(key, parent, now_s)
        block = self._blocks[key]
        if key in self._num_children:
            block.past.is_followed = True
        else:
            self._rank_head(block.kind)
        if above := self._blocks.get(parent):
            above.past.is_followed = True

    def _use(self, key: bytes, block: _KnownBlock, now_s: float) -> None:
        self._hear(now_s)
        self._hazards.use(block.past, now_s)
        if key in self._num_children:
            self._stamp(block)
            return
        kind = block.kind
        self._move(key, block, self._queue_of(block))
        self._rank_head(kind)
        self._rank_head(block.kind)

    def remove(self, key: bytes) -> None:
        block = self._blocks.get(key)
        if block is None:
            return
        super().remove(key)
        self._rank_head(block.kind)
        above = self._blocks.get(block.parent)
        if above is not None and block.parent not in self._num_children:
            self._rank_head(above.kind)

    def _newcomer(self, key: bytes, parent: bytes, now_s: float) -> _KnownBlock:
        self._most = max(self._most, len(self._blocks) + 1)
        past = self._ghosts.pop(key)
        if past is None:
            past = Past(key, now_s)
            self._hazards.begin(past)
        else:
            self._hazards.use(past, now_s)
        return _KnownBlock(parent, self._class_of(past.kind()), past)

    def _left(self, key: bytes, block: _KnownBlock) -> None:
        for past in self._ghosts.add(key, block.past, max(_LEAST_GHOSTS, _GHOSTS_PER_BLOCK * self._most)):
            self._hazards.lose(past, self._now_s)

    def _hear(self, now_s: float) -> None:
        if now_s > self._now_s:
            self._now_s = now_s
            self._ranks = None
            self._hazards.refit(now_s)

    def _class_of(self, kind: int) -> LeafQueue:
        queue = self._classes.get(kind)
        if queue is None:
            queue = self._classes[kind] = LeafQueue()
        return queue

    def _queue_of(self, block: _KnownBlock) -> LeafQueue:
        block.kind = block.past.kind()
        return self._class_of(block.kind)

    def _queues(self) -> Iterator[LeafQueue]:
        yield from self._classes.values()

    def _order(self, tour: Tour[_KnownBlock]) -> Iterator[bytes]:
        ranks = dict(self._ranked())
        for exposed in tour.exposed:
            rank = self._rank(exposed, exposed.kind)
            ranks[exposed.kind] = min(rank, ranks.get(exposed.kind, _LAST))
        heap = list(ranks.values())
        heapify(heap)
        while heap:
            kind = heap[0][2]
            queue = self._classes[kind]
            if ranks.get(kind) is not heap[0]:
                heappop(heap)
            elif (key := tour.peek(queue)) is None:
                del ranks[kind]
                heappop(heap)
            elif (rank := self._rank(self._blocks[key], kind)) != heap[0]:
                ranks[kind] = rank
                heapreplace(heap, rank)
            else:
                tour.take(queue)
                above = tour.expose_parent(key)
                if above and (rank := self._rank(above, above.kind)) < ranks.get(above.kind, _LAST):
                    ranks[above.kind] = rank
                    heappush(heap, rank)
                yield key

    def _ranked(self) -> dict[int, _Rank]:
        """Return what the head of each class that has leaves is worth now."""
        if self._ranks is None:
            self._ranks = {}
            for kind in self._classes:
                self._rank_head(kind)
        return self._ranks

    def _rank_head(self, kind: int) -> None:
        if self._ranks is None:
            return
        head = self._classes[kind].head()
        if head is None:
            self._ranks.pop(kind, None)
        else:
            self._ranks[kind] = self._rank(self._blocks[head], kind)

    def _rank(self, block: _KnownBlock, kind: int) -> _Rank:
        return self._hazards.index(kind, self._now_s - block.past.used_s), block.stamp, kind
