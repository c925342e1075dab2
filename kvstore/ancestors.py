"""Blocks that live on because one that follows them is used: all that it was computed on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kvstore.defaults import Use
from kvstore.record import Record

_MOST_PENDING = 1024


class _Pending(NamedTuple):
    """Uses of a block through those that follow it: since when, and the last one, which outlasts them all.

    It was noted for block ``first`` first: those after it may live as long by uses of their own, and say
    nothing of those before it.
    """

    since_ms: int
    use: Use
    first: bytes


class Ancestors:
    """Extends the blocks on which a used one was computed, as of its use, when it matters. Not thread-safe.

    A prompt's blocks are stored one by one: walking to its beginning for each of them would take time that
    grows with the square of its length. So a use is only noted, moves on with the next block that is stored,
    and is carried out when somebody's end has come (``settle``) ::

        stored   A   B   C   D            settle()
        noted       [A] [B] [C]           extends C, B, A until it meets one that lives as long

    ``extend(record, since_ms, use)`` extends a block if it was alive at ``since_ms``, and says so: what
    lies before one that was not is left alone.
    """

    def __init__(self, records: Mapping[bytes, Record], extend: Callable[[Record, int, Use], bool]) -> None:
        self._records = records
        self._extend = extend
        self._pending: dict[bytes, _Pending] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def note(self, key: bytes, use: Use) -> None:
        """Note that the block of ``key``, and all before it, were used through one that follows."""
        record = self._records.get(key)
        if record is None:
            return
        own = self._pending.get(key)
        noted_key, noted = (key, own) if own else (record.parent, self._pending.get(record.parent))
        if noted is not None and use.outlasts(noted.use):
            del self._pending[noted_key]
            self._pending[key] = noted._replace(use=use)
            return
        if key in self._pending or len(self._pending) >= _MOST_PENDING:
            self.settle()
        self._pending[key] = _Pending(use.now_ms, use, key)

    def settle(self) -> None:
        """Carry out what was noted."""
        pending, self._pending = self._pending, {}
        for key, noted in pending.items():
            self._carry_out(key, noted)

    def _carry_out(self, key: bytes, noted: _Pending) -> None:
        may_stop = False
        for _ in range(len(self._records)):  # a medium may tell of parents that go in a circle
            record = self._records.get(key)
            may_stop = may_stop or key == noted.first
            if record is None or (may_stop and noted.use.is_within(record)):
                return
            if not self._extend(record, noted.since_ms, noted.use):
                return
            key = record.parent
