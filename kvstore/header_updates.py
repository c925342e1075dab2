"""Headers whose blocks live longer, or shorter, than they say: rewritten behind everything else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from threading import Lock

from kvstore.clock import Clock
from kvstore.frame import NEVER_MS, Expiry, Header
from kvstore.keeping import KeepingIndex
from kvstore.record import Record
from kvstore.shared_tier import SharedTier
from kvstore.tier import Tier

_MOST_WAITING = 4096
_A_TURN = 32


class HeaderUpdates:
    """Keeps headers in line with how long their blocks live. Thread-safe; nobody waits for it.

    A use asks for it when a block's end has moved by an eighth of what is left of its life. The keys that
    wait for a tier are a set, written a few at a time by its writing thread; beyond some thousands they are
    dropped, and after a fault all of them: the next use asks again. Until then a header says too early an
    end, which costs a miss after a restart; what rules say of hard ends holds then as well.
    What somebody insists on is tried again, twice a second, until it is done.
    """

    def __init__(self, tiers: Iterable[Tier], index: KeepingIndex, clock: Clock) -> None:
        self._tiers = tuple(tier for tier in tiers if tier.can_amend)
        self._index = index
        self._clock = clock
        self._waiting: dict[int, dict[bytes, None]] = {tier.bit: {} for tier in self._tiers}
        self._insisted: dict[int, dict[bytes, None]] = {tier.bit: {} for tier in self._tiers}
        self._lock = Lock()
        self._mask = sum(1 << tier.bit for tier in self._tiers)

    def used(self, records: Sequence[Record]) -> None:
        """Note that these blocks of one prompt were used. Of those nobody else uses, none is more behind."""
        if not self._mask or not records:
            return
        now_ms = self._clock.wall_ms()
        if self._index.are_behind((records[0], records[-1]), self._mask, now_ms):
            self.ask(self._index.are_behind(records, self._mask, now_ms))

    def ask(self, records: Iterable[Record]) -> None:
        """Bring the headers of these blocks in line with them, as far as there is room to wait for it."""
        asked = list(records)
        kept = [record for tier in self._tiers for record in self._queue(tier, asked)]
        self._index.note_kept(kept)

    def insist(self, records: Iterable[Record]) -> None:
        """Bring the headers of these blocks in line, whatever else waits, and however often it fails."""
        asked = list(records)
        with self._lock:
            for tier in self._tiers:
                here = (record.key for record in asked if record.tiers >> tier.bit & 1)
                self._insisted[tier.bit].update(dict.fromkeys(here))
        self.retry()

    def retry(self) -> None:
        """Let what somebody insists on wait for its turn again; quick where there is nothing."""
        for tier in self._tiers:
            if not self._insisted[tier.bit]:
                continue
            with self._lock:
                waiting = self._waiting[tier.bit]
                was_empty = not waiting
                waiting.update(dict.fromkeys(islice(self._insisted[tier.bit], _MOST_WAITING)))
                if was_empty and not tier.pool.write(partial(self._run, tier)):
                    waiting.clear()

    def _queue(self, tier: Tier, records: Iterable[Record]) -> list[Record]:
        """Let blocks of a tier wait for their turn; returns those that do."""
        with self._lock:
            waiting = self._waiting[tier.bit]
            was_empty = not waiting
            here = [record for record in records if record.tiers >> tier.bit & 1]
            taken = here[: max(0, _MOST_WAITING - len(waiting))]
            waiting.update(dict.fromkeys(record.key for record in taken))
            if was_empty and waiting and not tier.pool.write(partial(self._run, tier)):
                waiting.clear()
                return []
        return taken

    def _run(self, tier: Tier) -> None:
        """Rewrite a few headers, and come back for the others behind what was queued meanwhile."""
        with self._lock:
            waiting = self._waiting[tier.bit]
            some = list(waiting)[:_A_TURN]
        is_closing = tier.pool.is_closing
        failed = None if is_closing else next((key for key in some if not self._rewrite(tier, key)), None)
        is_well = not is_closing and failed is None
        with self._lock:
            insisted = self._insisted[tier.bit]
            for key in some if is_well else list(waiting):
                del waiting[key]
                if is_well:
                    insisted.pop(key, None)
            if failed in insisted:  # it does not keep those behind it from theirs the next time
                insisted[failed] = insisted.pop(failed)
            if waiting and not tier.pool.write(partial(self._run, tier)):
                waiting.clear()

    def _rewrite(self, tier: Tier, key: bytes) -> bool:
        """Rewrite one header; ``False`` after a fault."""
        times = self._index.header_times(tier.bit, key, self._clock.wall_ms())
        if times is None:
            return True
        expiry, pinned_ms = times

        def change(header: Header) -> Header:
            ends = _combined(expiry, header.expiry) if isinstance(tier, SharedTier) else expiry
            return replace(header, expiry=ends, pinned_ms=pinned_ms)

        return tier.amend(key, change)


def _combined(ours: Expiry, theirs: Expiry) -> Expiry:
    """Return the ends of a block that others use as well: the latest soft one, the earliest hard one."""
    soft_ms = NEVER_MS if NEVER_MS in (ours.soft_ms, theirs.soft_ms) else max(ours.soft_ms, theirs.soft_ms)
    hard = [hard_ms for hard_ms in (ours.hard_ms, theirs.hard_ms) if hard_ms != NEVER_MS]
    return Expiry(soft_ms, min(hard, default=NEVER_MS))
