"""Leaves in the order in which they were last used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

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
