"""Each tier's own copy of a block, read to be looked at: nothing is touched, extended or counted as a use."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from kvstore.clock import Clock
from kvstore.keeping import KeepingIndex
from kvstore.placement import Placement
from kvstore.reading import Landing, Read
from kvstore.record import Record
from kvstore.tier import MemoryTier, Tier


class StoredCopies:
    """Reads from the tier it is told to, where a load takes the fastest. Thread-safe.

    The block is held while it is read. What turns out to be missing or corrupt is counted and dropped, as in
    a load; other reads count nowhere and change nothing.
    """

    def __init__(
        self, tiers: Sequence[Tier], index: KeepingIndex, placement: Placement, clock: Clock
    ) -> None:
        self._tiers = {tier.name: tier for tier in tiers}
        self._index = index
        self._placement = placement
        self._clock = clock

    @property
    def num_stored(self) -> int:
        """All copies in tiers that store bytes: a block in two of them counts twice."""
        return sum(self._index.usage(tier.bit)[1] for tier in self._tiers.values())

    def where(self, keys: Sequence[bytes]) -> list[tuple[str, ...]]:
        """Return the tiers that store each of these blocks and are readable; none for one in quarantine."""
        tiers = [tier for tier in self._tiers.values() if tier.is_readable()]
        mask, now_ms = sum(1 << tier.bit for tier in tiers), self._clock.wall_ms()
        trusted = [key for key in keys if not self._index.is_quarantined(key)]
        masks = dict(zip(trusted, self._index.peek(trusted, mask, now_ms), strict=True))
        return [tuple(tier.name for tier in tiers if masks.get(key, 0) >> tier.bit & 1) for key in keys]

    def read_into(self, key: bytes, tier: str, out: memoryview) -> Future[bool]:
        """Begin to read a tier's copy of a block of ``len(out)`` bytes; never blocks on a medium.

        The result is whether ``out``, which is to be left alone until then, has it: ``False`` is a miss, a
        fault or another length. It may be there at once; otherwise it is set on a transfer thread.
        """
        chosen, done = self._tiers[tier], Future[bool]()
        record = self._index.hold(key, chosen.bit, self._clock.wall_ms())
        if record is None:
            done.set_result(False)
        elif len(out) != record.raw_bytes:
            self._index.unhold([record])
            done.set_result(False)
        elif isinstance(chosen, MemoryTier):
            done.set_result(self._copy(chosen, record, out))
        elif not chosen.pool.read(lambda: self._read(chosen, record, out, done)):
            self._index.unhold([record])
            done.set_result(False)
        return done

    def _copy(self, tier: MemoryTier, record: Record, out: memoryview) -> bool:
        lent = self._placement.lend(tier, record)
        if lent is None:
            return False
        is_whole = len(lent.data) == len(out)
        if is_whole:
            out[:] = lent.data
        lent.give_back()
        return is_whole

    def _read(self, tier: Tier, record: Record, out: memoryview, done: Future[bool]) -> None:
        is_there = False
        try:
            if not tier.pool.is_closing:
                arrival = tier.read(Landing(record.copy(), out, is_used=False))
                is_there = arrival.outcome is Read.DONE
                self._placement.note_bad(tier, record.key, arrival.outcome)
        finally:
            self._index.unhold([record])
            done.set_result(is_there)
