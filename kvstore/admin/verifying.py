"""Comparing what lies in the tiers with its checksums."""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.admin.copy_reader import CopyReader
from kvstore.admin.index import OperatedIndex
from kvstore.admin.outcome import BadCopy, Verification
from kvstore.admin.progress import Progress
from kvstore.clock import Clock
from kvstore.reading import Read
from kvstore.tier import MemoryTier, Tier


class Verifier:
    """Reads copies and counts what it finds. For one operation; not thread-safe, blocks on the media."""

    def __init__(self, tiers: Sequence[Tier], index: OperatedIndex, copies: CopyReader, clock: Clock) -> None:
        self._tiers = tuple(tiers)
        self._index = index
        self._copies = copies
        self._clock = clock
        self._bad: list[BadCopy] = []
        self._num_verified = self._nbytes = self._num_unsure = self._num_unread = 0

    def verify(self, keys: Sequence[bytes], progress: Progress) -> Verification:
        """Verify each copy of these blocks."""
        progress.begin(len(keys))
        for key in keys:
            if progress.is_cancelled:
                break
            for tier in self._tiers:
                self._verify(tier, key)
            progress.step()
        return Verification(
            len(keys), self._num_verified, self._nbytes, tuple(self._bad), self._num_unsure, self._num_unread,
            progress.done < len(keys),
        )  # fmt: skip

    def _verify(self, tier: Tier, key: bytes) -> None:
        held = self._index.hold(key, tier.bit, self._clock.wall_ms())
        if held is None:
            return
        landed = held.copy()
        try:
            found = self._copies.read(tier, landed, len)
        finally:
            self._index.unhold([held])
        if isinstance(found, Read):
            if found in {Read.MISSING, Read.CORRUPT}:
                self._bad.append(BadCopy(key, tier.name, found.value))
            else:
                self._num_unread += 1
        elif landed.checksum is None and isinstance(tier, MemoryTier):
            self._num_unsure += 1
        else:
            self._num_verified += 1
            self._nbytes += found
