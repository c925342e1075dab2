"""The exact optimum: after each request those blocks are kept that are used again the soonest.

A block is used no later than those that stand after it in a prompt. So of what a request leaves behind,
the blocks that are next used by one later request are a span of places in both prompts, and the spans that
later requests add are before it::

    place            0   1   2   3   4   5   6
    request 7        ███████████████████████████
      next used by   |-- 8 --|---- 12 ----|  never
    request 8        ███████████████
      next used by   |- 12 --|  never

Spans are kept instead of blocks, by the request that uses them next; of the one that comes last the deepest
block goes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import groupby
from typing import NamedTuple

from api.simulate.trace import Trace

_NEVER = -1


class Span(NamedTuple):
    """Blocks of a prompt from place ``first`` to before ``end``, next used by request ``used_by``."""

    used_by: int
    first: int
    end: int


def next_uses(trace: Trace) -> list[list[Span]]:
    """Return for each request which of its blocks are used again, and by which request.

    The blocks of its answer are among them. Whatever an answer fills is made anew: until then nobody uses it.
    """
    used_by = [_NEVER] * trace.num_blocks
    uses: list[list[Span]] = []
    for number in range(len(trace.requests) - 1, -1, -1):
        request = trace.requests[number]
        uses.append(_spans([used_by[block] for block in (*request.blocks, *request.answer)]))
        for block in request.answer:
            used_by[block] = _NEVER
        for block in request.blocks:
            used_by[block] = number
    return uses[::-1]


def _spans(next_users: Sequence[int]) -> list[Span]:
    spans, first = list[Span](), 0
    for user, same in groupby(next_users):
        end = first + sum(1 for _ in same)
        if user != _NEVER:
            spans.append(Span(user, first, end))
        first = end
    return spans


class Optimum:
    """Keeps, after each request, the ``capacity_blocks`` blocks with the nearest next use."""

    def __init__(self, uses: Sequence[Sequence[Span]], capacity_blocks: int) -> None:
        self._uses = uses
        self._capacity_blocks = capacity_blocks
        self._kept: dict[int, deque[Span]] = {}  # by next user; each deepest first
        self._last_users: list[int] = []  # a heap of negated numbers; those without spans are stale
        self._num_blocks = 0

    def __len__(self) -> int:
        return self._num_blocks

    def serve(self, number: int) -> int:
        """Serve a request; returns how many of its blocks were hit, from the first."""
        num_hit = 0
        for span in reversed(self._kept.pop(number, ())):
            self._num_blocks -= span.end - span.first
            if span.first == num_hit:
                num_hit = span.end
        for span in self._uses[number]:
            self._keep(span)
        while self._num_blocks > self._capacity_blocks:
            self._shrink()
        return num_hit

    def _keep(self, span: Span) -> None:
        if span.used_by not in self._kept:
            self._kept[span.used_by] = deque()
            heappush(self._last_users, -span.used_by)
        self._kept[span.used_by].append(span)
        self._num_blocks += span.end - span.first

    def _shrink(self) -> None:
        """Let go of what exceeds the capacity, as far as it is in the deepest span of the last user."""
        spans = self._kept.get(-self._last_users[0])
        if not spans:
            self._kept.pop(-heappop(self._last_users), None)
            return
        deepest = spans.popleft()
        excess = min(self._num_blocks - self._capacity_blocks, deepest.end - deepest.first)
        self._num_blocks -= excess
        if deepest.end - excess > deepest.first:
            spans.appendleft(deepest._replace(end=deepest.end - excess))
