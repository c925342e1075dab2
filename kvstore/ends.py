"""Which blocks' time is over, without a scan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from kvstore.defaults import Defaults
from kvstore.record import FOREVER_MS, Record

_MIN_COMPACTION = 64


class Ends:
    """When the blocks of ``records`` end, soonest first. Not thread-safe.

    An entry is the end that was known when its block came into a tier. The block may have been
    extended since, or be gone and back, so an entry only says when to look. Entries that have
    outlived their blocks are cleared out when they are too many.
    """

    def __init__(self, records: Mapping[bytes, Record], defaults: Defaults) -> None:
        self._records = records
        self._defaults = defaults
        self._entries: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, record: Record) -> None:
        """Look at this block when it is to end in the first of its tiers; any number of times."""
        end_ms = self._defaults.next_ms(record)
        record.sure_ms = end_ms if record.named_ms or record.used_ms else 0
        self.look_at(record, end_ms)

    def look_at(self, record: Record, at_ms: int) -> None:
        """Look at this block then; 0: at once."""
        if at_ms < FOREVER_MS:
            heappush(self._entries, (at_ms, record.key))
            if len(self._entries) > max(_MIN_COMPACTION, 4 * len(self._records)):
                self._compact()

    def has_due(self, now_ms: int) -> bool:
        """Say whether there is a block to look at."""
        return bool(self._entries) and self._entries[0][0] <= now_ms

    def due(self, now_ms: int) -> Iterator[Record]:
        """Yield blocks that are to be looked at now; whoever does notes those that live on."""
        while self.has_due(now_ms):
            record = self._records.get(heappop(self._entries)[1])
            if record is not None:
                yield record

    def _compact(self) -> None:
        ends = (
            (0 if record.over else self._defaults.next_ms(record), key)
            for key, record in self._records.items()
        )
        self._entries = [entry for entry in ends if entry[0] < FOREVER_MS]
        heapify(self._entries)
