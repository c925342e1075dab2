"""One tier without its bytes: the books, policy and ends that a live tier has, at times handed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvstore.defaults import Defaults, Use, ttl_ms
from kvstore.hints import Hint
from kvstore.ledger import Ledger
from kvstore.lives import Lives
from kvstore.record import FOREVER_MS, Record
from kvstore.seams import EvictionPolicy
from kvstore.tenants import Tenants

_BLOCK_BYTES = 1
_BIT = 1


class SimulatedTier:
    """Serves prompts as a store with one memory tier would, every block counting as one byte.

    A prompt's blocks are held while it is served. Those that are there are touched, the last one first; then
    the missing ones are stored, the first one first, as far as there is room. With ``has_ends`` each request
    may give its blocks a soft TTL; those whose time is over are removed when the next one comes.
    """

    def __init__(self, policy: EvictionPolicy, capacity_blocks: int, *, has_ends: bool = False) -> None:
        self._policy = policy
        self._ledger = Ledger(capacity_blocks * _BLOCK_BYTES, policy)
        self._has_ends = has_ends
        self._now_s = 0.0
        self._records: dict[bytes, Record] = {}  # of all blocks, where they may have ends
        self._lives = Lives(self._records, Defaults([FOREVER_MS, FOREVER_MS]), Tenants())

    def __len__(self) -> int:
        return len(self._ledger.held)

    def serve(
        self,
        keys: Sequence[bytes],
        at_ms: float,
        ttl_s: float | None = None,
        answer: Sequence[bytes] = (),
        hint: Hint | None = None,
    ) -> int:
        """Serve a prompt of these blocks; returns how many of them were hit, from the first.

        ``answer`` are the whole blocks that the answer adds, stored after those of the prompt. ``hint`` is
        what is said when it has ended.
        """
        num_hit = self._use(keys, b"", at_ms, ttl_s)
        if answer and (not keys or keys[-1] in self._ledger.held):
            self._use(answer, keys[-1] if keys else b"", at_ms, ttl_s)
        if hint is not None:
            self._ledger.hear((*keys, *answer), hint, at_ms / 1000)
        return num_hit

    def thinned(
        self, policy: EvictionPolicy, capacity_blocks: int, is_kept: Callable[[bytes], bool]
    ) -> SimulatedTier:
        """Return a tier under a new ``policy`` with those of the blocks for which ``is_kept`` holds.

        They are there in the order in which they would have gone, of which the last ones fit. Only where
        blocks have ends.
        """
        tier = SimulatedTier(policy, capacity_blocks, has_ends=True)
        going = [key for key in self._policy.victims(lambda _: False) if is_kept(key)]
        for key in going[-capacity_blocks:]:
            parent = self._records[key].parent
            while parent in self._records and not is_kept(parent):
                parent = self._records[parent].parent
            tier._enter(replace(self._records[key], parent=parent), self._now_s)
        return tier

    def resident(self) -> set[bytes]:
        """Return the keys of the blocks that are there; their time may be over since the last request."""
        return set(self._ledger.held)

    def check(self) -> None:
        """Raise ``InvariantError`` when the books contradict each other."""
        self._ledger.check()

    def _use(self, keys: Sequence[bytes], parent: bytes, at_ms: float, ttl_s: float | None) -> int:
        use = self._lives.use_of_prompt(keys, int(at_ms), None if ttl_s is None else ttl_ms(ttl_s))
        is_found = self._find(keys, use)
        now_s, touch = at_ms / 1000, self._policy.touch
        self._now_s = now_s
        for key, found in zip(reversed(keys), reversed(is_found), strict=True):
            if found:
                touch(key, now_s)
        if all(is_found):
            return len(keys)
        self._store(keys, parent, now_s, use)
        return is_found.index(False)

    def _find(self, keys: Sequence[bytes], use: Use) -> list[bool]:
        """Say which blocks are there and alive; their ends are put off."""
        if not self._has_ends:
            return list(map(self._ledger.held.__contains__, keys))
        while due := self._lives.due(use.now_ms, len(self._records)):
            for departure in due:
                self._let_go(departure.key)
        records = list(map(self._records.get, keys))
        for record in records:
            if record is not None:
                self._lives.extend(record, use)
        return [record is not None for record in records]

    def _store(self, keys: Sequence[bytes], parent: bytes, now_s: float, use: Use) -> None:
        """Store the blocks that are not there, until there is no room."""
        ledger = self._ledger
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
                if self._has_ends:
                    record = Record(key, parent, created_ms=use.now_ms, tiers=1 << _BIT)
                    record.named_ms, record.used_ms = use.until_ms, 0 if use.until_ms else use.now_ms
                    self._note(record)
            parent = key

    def _enter(self, record: Record, now_s: float) -> None:
        self._ledger.add(record.key, record.parent, _BLOCK_BYTES, now_s)
        self._note(record)

    def _note(self, record: Record) -> None:
        self._records[record.key] = record
        self._lives.note(record)

    def _let_go(self, key: bytes) -> None:
        if self._ledger.begin_removal(key):
            self._ledger.confirm_removal(key)
        self._records.pop(key, None)
