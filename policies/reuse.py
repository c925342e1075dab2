"""Who is used again soonest, as far as can be told: the project's own policy."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace

from policies.ghosts import Ghosts
from policies.hazards import Hazards, Past
from policies.leaf_queue import LeafQueue
from policies.leaves import Block, LeafOrder, Tour
from policies.ranking import Head, Rank, Ranking

_GHOSTS_PER_BLOCK = 4
_LEAST_GHOSTS = 1024


class _KnownBlock(Block):
    __slots__ = ("kind", "past")

    def __init__(self, parent: bytes, queue: LeafQueue, past: Past) -> None:
        super().__init__(parent, queue)
        self.past = past
        self.kind = past.kind()  # the class in whose queue it stands as long as it is a leaf


class LeafFirstReuse(LeafOrder[_KnownBlock]):
    """Evicts the leaf that is least worth keeping, by when blocks like it were used again.

    Blocks alike (as many uses, as long gaps between them, followed by another block or not) form a class,
    whose leaves stand in a queue by last use. Of each class the one that has waited longest is asked for; of
    these the one with the lowest index (``Hazards``) goes. Indices are of the moment when a block came to the
    head of its class, and are renewed as it grows older (``Ranking``). Pasts are kept for four times as many
    blocks as were ever held at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._classes: dict[int, LeafQueue] = {}
        self._ghosts = Ghosts[Past]()
        self._hazards = Hazards()
        self._ranking = Ranking(self._head_of, self._hazards.index)
        self._most = 0

    def insert(self, key: bytes, parent: bytes, now_s: float) -> None:
        self._hear(now_s)
        super().insert(key, parent, now_s)
        block = self._blocks[key]
        if key in self._num_children:
            block.past.is_followed = True
        else:
            self._ranking.came(block.kind, block.stamp)
        if above := self._blocks.get(parent):
            above.past.is_followed = True
            self._ranking.went(above.kind, above.stamp)

    def remove(self, key: bytes) -> None:
        block = self._blocks.get(key)
        if block is None:
            return
        super().remove(key)
        self._ranking.went(block.kind, block.stamp)
        above = self._blocks.get(block.parent)
        if above is not None and block.parent not in self._num_children:
            self._ranking.came(above.kind, above.stamp)

    def _use(self, key: bytes, block: _KnownBlock, now_s: float) -> None:
        self._hear(now_s)
        self._hazards.use(block.past, now_s)
        if key in self._num_children:
            self._stamp(block)
            return
        kind, stamp = block.kind, block.stamp
        self._move(key, block, self._queue_of(block))
        self._ranking.went(kind, stamp)
        self._ranking.came(block.kind, block.stamp)

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
        self._ghosts.add(key, block.past)
        for past in self._ghosts.forget(max(_LEAST_GHOSTS, _GHOSTS_PER_BLOCK * self._most)):
            self._hazards.lose(past, self._ranking.now_s)

    def _hear(self, now_s: float) -> None:
        if self._hazards.refit(now_s):
            self._ranking.renew()
        self._ranking.pass_to(now_s)

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
        above = None
        if not tour.exposed and (key := self._first(tour)) is not None:
            yield key
            above = tour.expose_parent(key)
        yield from self._rest(tour, [*tour.exposed, above] if above else tour.exposed)

    def _first(self, tour: Tour[_KnownBlock]) -> bytes | None:
        """Take the head of the class that is ranked first; ``None``: it is held."""
        first = self._ranking.first()
        if first is None:
            return None
        queue = self._classes[first.kind]
        key = tour.peek(queue)
        return tour.take(queue) if key is not None and self._blocks[key].stamp == first.stamp else None

    def _rest(self, tour: Tour[_KnownBlock], exposed: list[_KnownBlock]) -> Iterator[bytes]:
        """Yield what goes after what was taken, which exposed some; ranks change on a copy."""
        ranks = self._ranking.ranks()
        for block in exposed:
            self._lower(ranks, block)
        heap = list(ranks.values())
        heapify(heap)
        while heap:
            rank = heap[0]
            queue = self._classes[rank.kind]
            if ranks.get(rank.kind) is not rank:
                heappop(heap)
            elif (key := tour.peek(queue)) is None:
                del ranks[rank.kind]
                heappop(heap)
            elif (block := self._blocks[key]).stamp != rank.stamp:
                ranks[rank.kind] = self._rank(block)
                heapreplace(heap, ranks[rank.kind])
            else:
                tour.take(queue)
                if (above := tour.expose_parent(key)) and self._lower(ranks, above):
                    heappush(heap, ranks[above.kind])
                yield key

    def _lower(self, ranks: dict[int, Rank], exposed: _KnownBlock) -> bool:
        """Let an exposed block head its class if it has waited longest there; says whether it has."""
        rank = ranks.get(exposed.kind)
        is_head = rank is None or exposed.stamp < rank.stamp
        if is_head:
            ranks[exposed.kind] = self._rank(exposed)
        return is_head

    def _rank(self, block: _KnownBlock) -> Rank:
        return self._ranking.rank(block.kind, Head(block.stamp, block.past.used_s))

    def _head_of(self, kind: int) -> Head | None:
        key = self._classes[kind].head()
        if key is None:
            return None
        block = self._blocks[key]
        return Head(block.stamp, block.past.used_s)
