"""Which blocks' time is over."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from kvstore.record import Record

_MIN_COMPACTION = 64


class Ends:
    """When the blocks of ``records`` end, soonest first. Not thread-safe.

    An entry is the end that was known when its block came into a tier. The block may have been
    extended since, or be gone and back, so an entry only says when to look. Entries that have
    outlived their blocks are cleared out when they are too many.
    """

    def __init__(self, records: Mapping[bytes, Record]) -> None:
        self._records = records
        self._entries: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, record: Record) -> None:
        """Look at this block when it is to end; it may be noted any number of times."""
        if at_ms := record.expiry.at_ms:
            heappush(self._entries, (at_ms, record.key))
            if len(self._entries) > max(_MIN_COMPACTION, 4 * len(self._records)):
                self._compact()

    def due(self, now_ms: int, limit: int) -> list[Record]:
        """Return up to ``limit`` blocks whose time is over and nobody holds, once for each note."""
        ended: dict[bytes, Record] = {}
        while self._entries and self._entries[0][0] <= now_ms and len(ended) < limit:
            _, key = heappop(self._entries)
            record = self._records.get(key)
            if record is None or key in ended:
                continue
            if record.is_expired(now_ms) and not record.num_holds:
                ended[key] = record
            elif at_ms := record.expiry.at_ms:
                heappush(self._entries, (max(at_ms, now_ms + 1), key))
        return list(ended.values())

    def _compact(self) -> None:
        ends = ((record.expiry.at_ms, key) for key, record in self._records.items())
        self._entries = [entry for entry in ends if entry[0]]
        heapify(self._entries)
