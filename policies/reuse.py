"""Who is used again soonest, as far as can be told: the project's own policy."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from math import inf

from policies.ghosts import Ghosts
from policies.hazards import Hazards, Past
from policies.leaves import Block, LeafOrder, LeafQueue, Tour

_GHOSTS_PER_BLOCK = 4
_LEAST_GHOSTS = 1024
_MOST_REMOVALS_PER_RANKING = 64

# What the head of a class is worth, its place, and the number of the class.
_Rank = tuple[float, int, int]


class _KnownBlock(Block):
    __slots__ = ("past",)

    def __init__(self, parent: bytes, queue: LeafQueue, past: Past) -> None:
        super().__init__(parent, queue)
        self.past = past


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
        self._ranking: list[_Rank] | None = None
        self._num_removals = 0

    def insert(self, key: bytes, parent: bytes, now_s: float) -> None:
        self._hear(now_s)
        super().insert(key, parent, now_s)
        self._rank_if_first(self._blocks[key])
        above = self._blocks.get(parent)
        if above is not None and not above.past.is_followed:
            above.past.is_followed = True
            above.queue = self._class_of(above.past)

    def touch(self, key: bytes, now_s: float) -> None:
        block = self._blocks.get(key)
        if block is None:
            return
        self._hear(now_s)
        self._hazards.use(block.past, now_s)
        self._move(key, block, self._class_of(block.past))
        self._rank_if_first(block)

    def remove(self, key: bytes) -> None:
        block = self._blocks.get(key)
        if block is None:
            return
        super().remove(key)
        above = self._blocks.get(block.parent)
        if self._ranking is not None and above is not None and block.parent not in self._num_children:
            heappush(self._ranking, self._rank(above))

    def _newcomer(self, key: bytes, parent: bytes, now_s: float) -> _KnownBlock:
        self._most = max(self._most, len(self._blocks) + 1)
        past = self._ghosts.pop(key)
        if past is None:
            past = Past(key, now_s)
            self._hazards.begin(past)
        else:
            self._hazards.use(past, now_s)
        return _KnownBlock(parent, self._class_of(past), past)

    def _left(self, key: bytes, block: _KnownBlock) -> None:
        for past in self._ghosts.add(key, block.past, max(_LEAST_GHOSTS, _GHOSTS_PER_BLOCK * self._most)):
            self._hazards.lose(past, self._now_s)
        self._num_removals += 1
        if self._num_removals >= _MOST_REMOVALS_PER_RANKING:
            self._ranking = None

    def _hear(self, now_s: float) -> None:
        if now_s > self._now_s:
            self._now_s = now_s
            self._ranking = None
            self._hazards.refit(now_s)

    def _class_of(self, past: Past) -> LeafQueue:
        kind = past.kind()
        queue = self._classes.get(kind)
        if queue is None:
            queue = self._classes[kind] = LeafQueue()
        return queue

    def _queues(self) -> Iterator[LeafQueue]:
        yield from self._classes.values()

    def _order(self, tour: Tour[_KnownBlock]) -> Iterator[bytes]:
        ranking = list(self._ranked())
        while ranking:
            kind = ranking[0][2]
            queue = self._classes[kind]
            key = tour.peek(queue)
            if key is None:
                heappop(ranking)
            elif (rank := self._rank(self._blocks[key])) != ranking[0]:
                heapreplace(ranking, rank)
            else:
                tour.take(queue)
                if exposed := tour.expose_parent(key):
                    heappush(ranking, self._rank(exposed))
                yield key

    def _ranked(self) -> list[_Rank]:
        """Return the heads of all classes, as a heap; some may be out of date."""
        if self._ranking is None:
            heads = [key for queue in self._classes.values() if (key := queue.head()) is not None]
            self._ranking = [self._rank(self._blocks[key]) for key in heads]
            heapify(self._ranking)
            self._num_removals = 0
        return self._ranking

    def _rank(self, block: _KnownBlock) -> _Rank:
        kind = block.past.kind()
        return self._hazards.index(kind, self._now_s - block.past.used_s), block.stamp, kind

    def _rank_if_first(self, block: _KnownBlock) -> None:
        if self._ranking is not None and len(block.queue) == 1:
            heappush(self._ranking, self._rank(block))
