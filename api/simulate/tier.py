"""One tier without its bytes: the books, policy and ends that a live tier has, at the trace's time."""

from __future__ import annotations

from collections.abc import Sequence

from api.simulate.trace import Trace
from kvstore.defaults import Defaults, ttl_ms
from kvstore.ledger import Ledger
from kvstore.lives import Lives
from kvstore.record import FOREVER_MS, Record
from kvstore.seams import EvictionPolicy
from kvstore.tenants import Tenants

_BLOCK_BYTES = 1
_BIT = 1


class SimulatedTier:
    """Serves a trace's requests as a store with one memory tier would, every block counting as one byte.

    A request's blocks are held while it is served. Those that are there are touched, the last one first; then
    the missing ones are stored, the first one first, as far as there is room. ``ttl_s`` is the soft TTL that
    each request gives its blocks; those whose time is over are removed when the next request comes.
    """

    def __init__(
        self, trace: Trace, policy: EvictionPolicy, capacity_blocks: int, ttl_s: float | None = None
    ) -> None:
        self._trace = trace
        self._policy = policy
        self._ledger = Ledger(capacity_blocks * _BLOCK_BYTES, policy)
        self._ttl_ms = None if ttl_s is None else ttl_ms(ttl_s)
        self._records: dict[bytes, Record] = {}  # of blocks that have an end
        self._lives = Lives(self._records, Defaults([FOREVER_MS, self._ttl_ms or FOREVER_MS]), Tenants())

    def __len__(self) -> int:
        return len(self._ledger.held)

    def serve(self, number: int) -> int:
        """Serve a request; returns how many of its blocks were hit, from the first."""
        request, key_of = self._trace.requests[number], self._trace.keys
        keys = [key_of[block] for block in request.blocks]
        is_found = self._find(keys, int(request.at_ms))
        now_s, touch = request.at_ms / 1000, self._policy.touch
        for key, found in zip(reversed(keys), reversed(is_found), strict=True):
            if found:
                touch(key, now_s)
        if all(is_found):
            return len(keys)
        self._store(keys, int(request.at_ms), now_s)
        return is_found.index(False)

    def resident(self) -> set[bytes]:
        """Return the keys of the blocks that are there; their time may be over since the last request."""
        return set(self._ledger.held)

    def check(self) -> None:
        """Raise ``InvariantError`` when the books contradict each other."""
        self._ledger.check()

    def _find(self, keys: Sequence[bytes], now_ms: int) -> list[bool]:
        """Say which blocks are there and alive; their ends are put off."""
        if self._ttl_ms is None:
            return list(map(self._ledger.held.__contains__, keys))
        while due := self._lives.due(now_ms, len(self._records)):
            for departure in due:
                self._let_go(departure.key)
        use = self._lives.use_of_prompt((), now_ms, self._ttl_ms)
        records = list(map(self._records.get, keys))
        for record in records:
            if record is not None:
                self._lives.extend(record, use)
        return [record is not None for record in records]

    def _store(self, keys: Sequence[bytes], now_ms: int, now_s: float) -> None:
        """Store the blocks that are not there, until there is no room."""
        ledger, parent = self._ledger, b""
        is_in_use = frozenset(keys).__contains__
        for key in keys:
            if key not in ledger.held:
                room = ledger.reserve(key, _BLOCK_BYTES, is_in_use)
                if room is None:
                    return
                for victim in room.victims:
                    self._records.pop(victim, None)
                    ledger.confirm_removal(victim)
                ledger.settle(room, parent, now_s)
                if self._ttl_ms is not None:
                    record = Record(key, parent, created_ms=now_ms, tiers=1 << _BIT)
                    self._lives.begin(record, self._ttl_ms)
                    self._records[key] = record
                    self._lives.note(record)
            parent = key

    def _let_go(self, key: bytes) -> None:
        if self._ledger.begin_removal(key):
            self._ledger.confirm_removal(key)
        self._records.pop(key, None)
