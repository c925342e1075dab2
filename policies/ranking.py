"""Which class of blocks has the head least worth keeping, without comparing all of them each time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

_LEAST_S = 1 / 16
_SHARE_OF_AGE = 1 / 16
_MIN_COMPACTION = 64


class Head(NamedTuple):
    """The block of a class that has waited longest: its place in the order of uses, and its last use."""

    stamp: int
    used_s: float


class Rank(NamedTuple):
    """What the head of a class is worth; of two alike the one that was used earlier goes first."""

    worth: float
    stamp: int
    kind: int


class Ranking:
    """The heads of all classes that have leaves, lowest index first. Not thread-safe.

    A class is asked when another block has come to its head, when its head has waited a sixteenth longer
    than when it was asked last, and, one class a call, after ``renew``. Entries of both heaps that are not
    a class's current rank are stale and passed over.
    """

    def __init__(self, head_of: Callable[[int], Head | None], index: Callable[[int, float], float]) -> None:
        """``head_of`` is asked by a class's number; ``index`` by that and the head's age in seconds."""
        self.now_s = -inf
        self._head_of = head_of
        self._index = index
        self._ranks: dict[int, Rank] = {}
        self._lowest: list[Rank] = []
        self._due: list[tuple[float, Rank]] = []
        self._unrenewed: list[int] = []

    def pass_to(self, now_s: float) -> None:
        """Note the time, and ask those classes again whose heads have waited for it."""
        self.now_s = now_s
        if self._unrenewed:
            self._rank(self._unrenewed.pop())
        if not self._due or self._due[0][0] > now_s:
            return
        due = []
        while self._due and self._due[0][0] <= now_s:
            due.append(heappop(self._due)[1])
        for rank in due:
            if self._ranks.get(rank.kind) is rank:
                self._rank(rank.kind)

    def renew(self) -> None:
        """Ask all classes again, one with each call of ``pass_to``, because indices have changed."""
        self._unrenewed = sorted(self._ranks, reverse=True)

    def came(self, kind: int, stamp: int) -> None:
        """Note that a leaf has come to a class."""
        rank = self._ranks.get(kind)
        if rank is None or stamp < rank.stamp:
            self._rank(kind)

    def went(self, kind: int, stamp: int) -> None:
        """Note that a block is no longer a leaf of its class, or not in the same place."""
        rank = self._ranks.get(kind)
        if rank is not None and rank.stamp == stamp:
            self._rank(kind)

    def first(self) -> Rank | None:
        """Return the lowest of all; ``None``: there are no leaves."""
        while self._lowest and self._ranks.get(self._lowest[0].kind) is not self._lowest[0]:
            heappop(self._lowest)
        return self._lowest[0] if self._lowest else None

    def ranks(self) -> dict[int, Rank]:
        """Return a copy of all ranks, by class."""
        return dict(self._ranks)

    def rank(self, kind: int, head: Head) -> Rank:
        """Return what a block would be worth now at the head of a class."""
        return Rank(self._index(kind, self.now_s - head.used_s), head.stamp, kind)

    def _rank(self, kind: int) -> None:
        head = self._head_of(kind)
        if head is None:
            self._ranks.pop(kind, None)
            return
        rank = self._ranks[kind] = self.rank(kind, head)
        heappush(self._lowest, rank)
        wait_s = max(_LEAST_S, _SHARE_OF_AGE * (self.now_s - head.used_s))
        heappush(self._due, (self.now_s + wait_s, rank))
        if len(self._lowest) > _MIN_COMPACTION + 2 * len(self._ranks):
            self._lowest = list(self._ranks.values())
            heapify(self._lowest)
        if len(self._due) > _MIN_COMPACTION + 2 * len(self._ranks):
            self._due = [(due_s, rank) for due_s, rank in self._due if self._ranks.get(rank.kind) is rank]
            heapify(self._due)
