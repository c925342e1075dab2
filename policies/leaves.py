"""Leaf-first orders made of several queues: what the eviction policies with more than one have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain
from typing import Generic, TypeVar

from kvstore.errors import InvariantError
from kvstore.hints import Hint
from kvstore.seams import IsHeld
from policies.farewells import Farewells
from policies.leaf_queue import Entry, LeafQueue


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
        is_held: IsHeld,
    ) -> None:
        self._blocks = blocks
        self._num_children = num_children
        self._queue_of = queue_of
        self._is_held = is_held
        self._num_gone: dict[bytes, int] = {}
        self._gone: dict[bytes, None] = {}
        self.exposed: list[B] = []
        """Blocks that are leaves because what goes before all queues has gone."""
        self._rest: dict[LeafQueue, Iterator[Entry]] = {}
        self._next: dict[LeafQueue, list[Entry]] = {}

    def take_chains(self, chains: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
        """Yield the blocks of each chain up to one that is held, before any queue is looked at.

        Each has no other child than the one before it.
        """
        for blocks in chains:
            for key in blocks:
                if self._is_held(key):
                    break
                self._gone[key] = None
                yield key
        for key in self._gone:
            if self._blocks[key].parent not in self._gone and (block := self.expose_parent(key)):
                self.exposed.append(block)

    def peek(self, queue: LeafQueue) -> bytes | None:
        """Return the next leaf of ``queue`` that is not held; ``None``: there is none."""
        if queue not in self._next:
            head = queue.head()
            if head is None or self._may_go(head):
                return head
        ahead = self._ahead(queue)
        return ahead[0][1] if ahead else None

    def take(self, queue: LeafQueue) -> bytes | None:
        """Return the next leaf of ``queue`` that is not held, which is gone from now on."""
        key = self.peek(queue)
        if key is None:
            return None
        if queue not in self._next:
            self._gone[key] = None
            return key
        stamp, _ = heappop(self._next[queue])
        if stamp == self._blocks[key].stamp and key in queue:
            self._advance(queue)
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
        heappush(self._ahead(self._queue_of(parent)), (parent.stamp, parent_key))
        return parent

    def _ahead(self, queue: LeafQueue) -> list[Entry]:
        """Return what comes next: a leaf, and exposed blocks. Walking begins here, as taking one is cheap."""
        ahead = self._next.get(queue)
        if ahead is None:
            ahead = self._next[queue] = []
            self._rest[queue] = iter(queue)
            self._advance(queue)
        return ahead

    def _advance(self, queue: LeafQueue) -> None:
        """Bring the queue's next leaf forward."""
        for entry in self._rest[queue]:
            if self._may_go(entry[1]):
                heappush(self._next[queue], entry)
                return

    def _may_go(self, key: bytes) -> bool:
        return key not in self._gone and not self._is_held(key)


class LeafOrder(ABC, Generic[B]):
    """An eviction policy whose leaves stand in queues. Subclasses say in which, and whose head goes next."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, B] = {}
        self._num_children: dict[bytes, int] = {}
        self._num_stamps = 0
        self._farewells: Farewells | None = None  # until a hint is heard

    def insert(self, key: bytes, parent: bytes, now_s: float) -> None:
        if self._farewells is not None:
            self._farewells.came(key, parent)
        block = self._blocks[key] = self._newcomer(key, parent, now_s)
        self._stamp(block)
        if key not in self._num_children:
            block.queue.add(key, block.stamp)
        if parent:
            self._num_children[parent] = self._num_children.get(parent, 0) + 1
            if self._num_children[parent] == 1 and (covered := self._blocks.get(parent)):
                covered.queue.discard(parent)

    def touch(self, key: bytes, now_s: float) -> None:
        block = self._blocks.get(key)
        if block is None:
            return
        if self._farewells is not None:
            self._farewells.used(key)
        self._use(key, block, now_s)

    def hear(self, keys: Sequence[bytes], hint: Hint, now_s: float) -> None:  # noqa: ARG002 - uses are timed
        """Take a hint; see ``Hearing``. It is about those blocks at the prompt's end that are its alone."""
        if own := self._own(keys):
            if self._farewells is None:
                self._farewells = Farewells()
            self._farewells.hear(own, hint)

    def remove(self, key: bytes) -> None:
        block = self._blocks.pop(key, None)
        if block is None:
            return
        if self._farewells is not None:
            self._farewells.went(key)
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

    def victims(self, is_held: IsHeld) -> Iterator[bytes]:
        """Yield what goes for a hint, then leaves in the order of the policy; see ``EvictionPolicy``."""
        tour = Tour(self._blocks, self._num_children, self._queue_of, is_held)
        if self._farewells is None:
            return self._order(tour)
        return chain(tour.take_chains(self._farewells), self._order(tour))

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
        self._check_queues(children)
        if self._farewells is not None:
            self._farewells.check({key: block.parent for key, block in self._blocks.items()})

    def _check_queues(self, children: Container[bytes]) -> None:
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

    def _own(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return the last resident blocks of a prompt, the last one first, up to one with another child."""
        own, num_followers = list[bytes](), 0
        for key in reversed(keys):
            if key not in self._blocks:
                num_followers = 0
            elif self._num_children.get(key, 0) > num_followers:
                break
            else:
                own.append(key)
                num_followers = 1
        return own

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
    def _use(self, key: bytes, block: B, now_s: float) -> None:
        """Note a use of a resident block."""

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
