"""The part of the index that knows how long blocks live."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock

from kvstore.defaults import Defaults
from kvstore.frame import Expiry
from kvstore.lives import Departure, Lives
from kvstore.record import Record
from kvstore.tenants import Tenants


class Lifespans:
    """Records by key, and their ends. Thread-safe."""

    def __init__(self, defaults: Defaults, tenants: Tenants) -> None:
        self._records: dict[bytes, Record] = {}
        self._lives = Lives(self._records, defaults, tenants)
        self._lock = Lock()

    def due(self, now_ms: int, limit: int) -> list[Departure]:
        """Return up to ``limit`` blocks for their tiers to let go of."""
        with self._lock:
            return self._lives.due(now_ms, limit)

    def over_in_pool(self) -> list[bytes]:
        """Return the blocks whose time is over that the engine's own pool still has."""
        if not self._lives.over_in_pool:
            return []
        with self._lock:
            return list(self._lives.over_in_pool)

    def take_limited(self) -> list[Record]:
        """Return the blocks that turned out to be under a hard limit, each once."""
        if not self._lives.limited:
            return []
        with self._lock:
            limited, self._lives.limited = self._lives.limited, []
            return limited

    def expiry(self, bit: int, facts: Record, now_ms: int) -> Expiry | None:
        """Return a block's ends for its header in a tier, ``None`` when its time is over there.

        They are those of the block that is known by now; ``facts`` are what a writer knows of it.
        """
        with self._lock:
            return self._lives.expiry(facts, bit, now_ms)

    def has_ended(self, bit: int, facts: Record, now_ms: int) -> bool:
        """Say whether a block's time in a tier, which may not have it any more, is over."""
        with self._lock:
            return self._lives.end_ms(facts, bit) <= now_ms

    def are_behind(self, records: Sequence[Record], mask: int, now_ms: int) -> list[Record]:
        """Return those of ``records`` whose headers in tiers of ``mask`` say too early an end."""
        with self._lock:
            return self._lives.are_behind(records, mask, now_ms)

    def note_kept(self, records: Iterable[Record]) -> None:
        """Note that the headers of these blocks are about to be rewritten."""
        with self._lock:
            for record in records:
                record.note_kept()

    def _is_alive(self, record: Record, now_ms: int) -> bool:
        return now_ms < record.sure_ms or self._lives.is_alive(record, now_ms)
