"""Leaf-first orders made of several queues: what the eviction policies with more than one have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from kvstore.errors import InvariantError

_MIN_COMPACTION = 64

# A block's place in its queue, and its key.
Entry = tuple[int, bytes]


class LeafQueue:
    """Leaves in the order of their stamps. Adding the newest and discarding cost O(1).

    A parent whose last child has gone comes late, with an older stamp than the newest. It waits in a heap,
    where entries that are no longer in ``_late`` are stale and passed over.
    """

    __slots__ = ("_heap", "_in_order", "_late")

    def __init__(self) -> None:
        self._in_order: OrderedDict[bytes, int] = OrderedDict()
        self._late: dict[bytes, int] = {}
        self._heap: list[Entry] = []

    def add(self, key: bytes, stamp: int) -> None:
        """Add a leaf with the newest stamp of all."""
        self._in_order[key] = stamp

    def add_late(self, key: bytes, stamp: int) -> None:
        """Add a leaf with a stamp of any age."""
        self._late[key] = stamp
        heappush(self._heap, (stamp, key))
        if len(self._heap) > max(_MIN_COMPACTION, 2 * len(self._late)):
            self._heap = [(stamp, key) for key, stamp in self._late.items()]
            heapify(self._heap)

    def discard(self, key: bytes) -> None:
        """Take a leaf out; nothing happens when it is not here."""
        if self._in_order.pop(key, None) is None:
            self._late.pop(key, None)

    def head(self) -> bytes | None:
        """Return the leaf with the oldest stamp."""
        self._drop_stale()
        first = next(iter(self._in_order.items()), None)
        if self._heap and (first is None or self._heap[0][0] < first[1]):
            return self._heap[0][1]
        return first[0] if first else None

    def __len__(self) -> int:
        return len(self._in_order) + len(self._late)

    def __contains__(self, key: bytes) -> bool:
        return key in self._in_order or key in self._late

    def __iter__(self) -> Iterator[Entry]:
        """Yield all leaves, oldest stamp first."""
        self._drop_stale()
        late = self._late_in_order()
        waiting = next(late, None)
        for key, stamp in self._in_order.items():
            while waiting and waiting[0] < stamp:
                yield waiting
                waiting = next(late, None)
            yield stamp, key
        while waiting:
            yield waiting
            waiting = next(late, None)

    def _late_in_order(self) -> Iterator[Entry]:
        """Walk over the heap in order and leave it as it is."""
        ahead = [(self._heap[0], 0)] if self._heap else []
        last: Entry | None = None
        while ahead:
            entry, place = heappop(ahead)
            for child in (2 * place + 1, 2 * place + 2):
                if child < len(self._heap):
                    heappush(ahead, (self._heap[child], child))
            if entry != last and self._is_current(entry):
                yield entry
            last = entry

    def _drop_stale(self) -> None:
        while self._heap and not self._is_current(self._heap[0]):
            heappop(self._heap)

    def _is_current(self, entry: Entry) -> bool:
        return self._late.get(entry[1]) == entry[0]


class Block:
    """What is known of a resident block: its parent, its queue, and its place there."""

    __slots__ = ("parent", "queue", "stamp")

    def __init__(self, parent: bytes, queue: LeafQueue) -> None:
        self.parent = parent
        self.queue = queue
        self.stamp = 0


B = TypeVar("B", bound=Block)


class Tour(Generic[B]):
    """One pass over the queues in which what was taken counts as gone; the queues stay as they are."""

    def __init__(
        self,
        blocks: dict[bytes, B],
        num_children: dict[bytes, int],
        queue_of: Callable[[B], LeafQueue],
        is_held: Callable[[bytes], bool],
    ) -> None:
        self._blocks = blocks
        self._num_children = num_children
        self._queue_of = queue_of
        self._is_held = is_held
        self._num_gone: dict[bytes, int] = {}
        self._rest: dict[LeafQueue, Iterator[Entry]] = {}
        self._next: dict[LeafQueue, list[Entry]] = {}
        self._taken: set[LeafQueue] = set()

    def peek(self, queue: LeafQueue) -> bytes | None:
        """Return the next leaf of ``queue`` that is not held; ``None``: there is none."""
        ahead = self._next.get(queue)
        if ahead is None:
            ahead = self._next[queue] = []
            self._rest[queue] = iter(queue)
            self._advance(queue)
        elif queue in self._taken:
            self._taken.discard(queue)
            self._advance(queue)
        return ahead[0][1] if ahead else None

    def take(self, queue: LeafQueue) -> bytes | None:
        """Return the next leaf of ``queue`` that is not held, which is gone from now on."""
        key = self.peek(queue)
        if key is None:
            return None
        stamp, _ = heappop(self._next[queue])
        if stamp == self._blocks[key].stamp and key in queue:
            self._taken.add(queue)  # its next one is looked for when it is asked for: often it is not
        return key

    def expose_parent(self, key: bytes) -> B | None:
        """Let the parent of ``key``, which was taken, follow when this was its last child; returns it."""
        parent_key = self._blocks[key].parent
        parent = self._blocks.get(parent_key)
        if parent is None:
            return None
        num_gone = self._num_gone[parent_key] = self._num_gone.get(parent_key, 0) + 1
        if num_gone < self._num_children[parent_key] or self._is_held(parent_key):
            return None
        queue = self._queue_of(parent)
        self.peek(queue)
        heappush(self._next[queue], (parent.stamp, parent_key))
        return parent

    def _advance(self, queue: LeafQueue) -> None:
        """Bring the queue's next leaf forward."""
        for entry in self._rest[queue]:
            if not self._is_held(entry[1]):
                heappush(self._next[queue], entry)
                return


class LeafOrder(ABC, Generic[B]):
    """An eviction policy whose leaves stand in queues. Subclasses say in which, and whose head goes next."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, B] = {}
        self._num_children: dict[bytes, int] = {}
        self._num_stamps = 0

    def insert(self, key: bytes, parent: bytes, now_s: float) -> None:
        block = self._blocks[key] = self._newcomer(key, parent, now_s)
        self._stamp(block)
        if key not in self._num_children:
            block.queue.add(key, block.stamp)
        if parent:
            self._num_children[parent] = self._num_children.get(parent, 0) + 1
            if self._num_children[parent] == 1 and (covered := self._blocks.get(parent)):
                covered.queue.discard(parent)

    def remove(self, key: bytes) -> None:
        block = self._blocks.pop(key, None)
        if block is None:
            return
        block.queue.discard(key)
        self._left(key, block)
        if not block.parent:
            return
        num_left = self._num_children[block.parent] - 1
        if num_left:
            self._num_children[block.parent] = num_left
            return
        del self._num_children[block.parent]
        if exposed := self._blocks.get(block.parent):
            exposed.queue = self._queue_of(exposed)
            exposed.queue.add_late(block.parent, exposed.stamp)

    def victims(self, is_held: Callable[[bytes], bool]) -> Iterator[bytes]:
        """Yield leaves in the order of the policy; see ``EvictionPolicy.victims``."""
        return self._order(Tour(self._blocks, self._num_children, self._queue_of, is_held))

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: bytes) -> bool:
        return key in self._blocks

    def check(self) -> None:
        children: dict[bytes, int] = {}
        for block in self._blocks.values():
            if block.parent:
                children[block.parent] = children.get(block.parent, 0) + 1
        if children != self._num_children:
            raise InvariantError("the counts of resident children are wrong")
        leaves = {key: block for key, block in self._blocks.items() if key not in children}
        if any(key not in block.queue for key, block in leaves.items()):
            raise InvariantError("a leaf is missing from its queue")
        queues = {id(queue): queue for queue in self._queues()}
        if sum(map(len, queues.values())) != len(leaves):
            raise InvariantError("a queue holds what is no leaf of it")
        for queue in queues.values():
            entries = list(queue)
            if entries != sorted(entries) or any(self._blocks[key].stamp != stamp for stamp, key in entries):
                raise InvariantError("a queue is not in the order of its stamps")

    def _move(self, key: bytes, block: B, queue: LeafQueue) -> None:
        """Put a block at the end of ``queue``."""
        if key in self._num_children:
            block.queue = queue
            self._stamp(block)
            return
        block.queue.discard(key)
        block.queue = queue
        self._stamp(block)
        queue.add(key, block.stamp)

    def _stamp(self, block: B) -> None:
        self._num_stamps += 1
        block.stamp = self._num_stamps

    def _queue_of(self, block: B) -> LeafQueue:
        """Return where a block stands as soon as it is a leaf."""
        return block.queue

    @abstractmethod
    def touch(self, key: bytes, now_s: float) -> None: ...

    @abstractmethod
    def _newcomer(self, key: bytes, parent: bytes, now_s: float) -> B:
        """Return what is known of a block that comes in."""

    @abstractmethod
    def _left(self, key: bytes, block: B) -> None:
        """Note that a block has gone."""

    @abstractmethod
    def _queues(self) -> Iterator[LeafQueue]:
        """Yield all queues."""

    @abstractmethod
    def _order(self, tour: Tour[B]) -> Iterator[bytes]:
        """Yield what goes, each taken from the tour."""
