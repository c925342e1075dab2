"""Blocks that live on because one that follows them is used: all that it was computed on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kvstore.defaults import Use
from kvstore.record import Record

_MOST_PENDING = 1024


class _Pending(NamedTuple):
    """Uses of a block through those that follow it: since when, and the last one, which outlasts them all."""

    since_ms: int
    use: Use


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
        since_ms = use.now_ms
        for noted_key in (record.parent, key):
            noted = self._pending.get(noted_key)
            if noted is not None and use.outlasts(noted.use):
                since_ms = min(since_ms, noted.since_ms)
                del self._pending[noted_key]
        if key in self._pending or len(self._pending) >= _MOST_PENDING:
            self.settle()
        self._pending[key] = _Pending(since_ms, use)

    def settle(self) -> None:
        """Carry out what was noted."""
        pending, self._pending = self._pending, {}
        for key, (since_ms, use) in pending.items():
            record = self._records.get(key)
            while record is not None and not use.is_within(record) and self._extend(record, since_ms, use):
                record = self._records.get(record.parent)
