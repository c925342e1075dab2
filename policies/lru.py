"""Least recently used first, leaves before their parents."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from kvstore.errors import InvariantError

_MIN_COMPACTION = 64


# When a block was used last, and the use's number, which tells uses at the same time apart.
_Use = tuple[float, int]


class LeafFirstLRU:
    """Evicts the leaf that was used longest ago; a parent becomes a leaf when its children are gone.

    Leaves that were inserted or used as leaves stand in ``_leaves`` in the order of their last
    use. A parent exposed by the removal of its last child has an older use than the end of that
    order, so it waits in a heap, ``_exposed``; entries there whose block was used, removed or
    covered by a new child since are stale and passed over. Cost: O(1) a use, O(log n) an eviction.
    """

    def __init__(self) -> None:
        self._last_use: dict[bytes, _Use] = {}
        self._parents: dict[bytes, bytes] = {}
        self._num_children: dict[bytes, int] = {}
        self._leaves: OrderedDict[bytes, None] = OrderedDict()
        self._exposed: list[tuple[_Use, bytes]] = []
        self._num_uses = 0

    def insert(self, key: bytes, parent: bytes, now_s: float) -> None:
        self._last_use[key] = self._use(now_s)
        self._parents[key] = parent
        if key not in self._num_children:
            self._leaves[key] = None
        if parent:
            self._num_children[parent] = self._num_children.get(parent, 0) + 1
            self._leaves.pop(parent, None)

    def touch(self, key: bytes, now_s: float) -> None:
        if key not in self._last_use:
            return
        self._last_use[key] = self._use(now_s)
        if key not in self._num_children:
            self._leaves[key] = None
            self._leaves.move_to_end(key)

    def remove(self, key: bytes) -> None:
        if self._last_use.pop(key, None) is None:
            return
        self._leaves.pop(key, None)
        parent = self._parents.pop(key)
        if not parent:
            return
        num_left = self._num_children[parent] - 1
        if num_left:
            self._num_children[parent] = num_left
        else:
            del self._num_children[parent]
            self._expose(parent)

    def victims(self, is_held: Callable[[bytes], bool]) -> Iterator[bytes]:
        """Yield leaves, oldest use first; see ``EvictionPolicy.victims``."""
        num_gone: dict[bytes, int] = {}
        newly_exposed: list[tuple[_Use, bytes]] = []
        for key in self._in_order(newly_exposed):
            if is_held(key):
                continue
            yield key
            parent = self._parents[key]
            if parent in self._last_use:
                num_gone[parent] = num_gone.get(parent, 0) + 1
                if num_gone[parent] == self._num_children[parent]:
                    heappush(newly_exposed, (self._last_use[parent], parent))

    def __len__(self) -> int:
        return len(self._last_use)

    def __contains__(self, key: bytes) -> bool:
        return key in self._last_use

    def check(self) -> None:
        children: dict[bytes, int] = {}
        for parent in filter(None, self._parents.values()):
            children[parent] = children.get(parent, 0) + 1
        if children != self._num_children or self._parents.keys() != self._last_use.keys():
            raise InvariantError("the counts of resident children are wrong")
        exposed = {entry[1] for entry in self._exposed if self._is_current(entry)}
        leaves = {key for key in self._last_use if key not in children}
        if exposed | self._leaves.keys() != leaves or exposed & self._leaves.keys():
            raise InvariantError("a leaf must stand in exactly one of the two orders")
        uses = [self._last_use[key] for key in self._leaves]
        if uses != sorted(uses):
            raise InvariantError("the leaves are not in the order of their last use")

    def _use(self, now_s: float) -> _Use:
        self._num_uses += 1
        return now_s, self._num_uses

    def _expose(self, key: bytes) -> None:
        if key not in self._last_use:
            return
        heappush(self._exposed, (self._last_use[key], key))
        if len(self._exposed) > max(_MIN_COMPACTION, 2 * len(self._last_use)):
            self._exposed = [entry for entry in set(self._exposed) if self._is_current(entry)]
            heapify(self._exposed)

    def _is_current(self, entry: tuple[_Use, bytes]) -> bool:
        use, key = entry
        return self._last_use.get(key) == use and key not in self._num_children and key not in self._leaves

    def _in_order(self, newly_exposed: list[tuple[_Use, bytes]]) -> Iterator[bytes]:
        """Yield all leaves by last use, merging the two orders and what the caller adds meanwhile."""
        taken: list[tuple[_Use, bytes]] = []
        try:
            for leaf in self._leaves:
                if self._exposed or newly_exposed:
                    yield from self._exposed_before(self._last_use[leaf], newly_exposed, taken)
                yield leaf
            yield from self._exposed_before(None, newly_exposed, taken)
        finally:
            for entry in taken:
                heappush(self._exposed, entry)

    def _exposed_before(
        self, use: _Use | None, newly_exposed: list[tuple[_Use, bytes]], taken: list[tuple[_Use, bytes]]
    ) -> Iterator[bytes]:
        while self._exposed or newly_exposed:
            heap = self._exposed
            if newly_exposed and (not heap or newly_exposed[0] < heap[0]):
                heap = newly_exposed
            if use is not None and heap[0][0] > use:
                return
            entry = heappop(heap)
            if heap is newly_exposed:
                yield entry[1]
            elif self._is_current(entry) and entry not in taken[-1:]:
                taken.append(entry)
                yield entry[1]
