"""Letting blocks go: off the books, and off the medium unless it is others' or ends them by itself."""

from __future__ import annotations

from kvstore.absences import Cause
from kvstore.index import ResidencyIndex
from kvstore.reading import Read
from kvstore.shared_tier import SharedTier
from kvstore.statistics import Count
from kvstore.tier import MemoryTier, Tier

_CAUSES = {Read.MISSING: Cause.MISSING, Read.CORRUPT: Cause.CORRUPT}


class Removal:
    """Takes blocks out of tiers; bookkeeping is the index's, bytes are the backends'."""

    def __init__(self, index: ResidencyIndex) -> None:
        self._index = index

    def remove(self, tier: Tier, key: bytes, cause: Cause, *, even_if_held: bool = False) -> bool:
        """Take a block out of one tier: from memory at once, from a medium in the background.

        What others stored on a shared medium stays there, unless it is bad or was to be removed.
        """
        if not self._index.begin_removal(tier.bit, key, cause, even_if_held=even_if_held):
            return False
        if cause is Cause.MISSING and self._index.is_theirs(tier.bit, key):
            self._index.confirm_removal(tier.bit, key)
        else:
            self._delete_behind(tier, key)
        return True

    def expire(self, tier: Tier, key: bytes, *, is_hard: bool) -> bool:
        """Remove a copy whose time is over; blocks on no medium. ``False``: it is held, or another by now.

        A shared medium ends blocks by itself, and others may have put a soft end off there.
        """
        if not self._index.begin_expiry(tier.bit, key, is_hard=is_hard):
            return False
        if isinstance(tier, SharedTier) and not is_hard:
            self._index.confirm_removal(tier.bit, key)
        else:
            self._delete_behind(tier, key)
        return True

    def make_way(self, tier: Tier, key: bytes, now_ms: int) -> None:
        """Remove a copy whose time in a tier is over before another comes there; blocks on the medium."""
        if self._index.begin_replacement(tier.bit, key, now_ms):
            tier.counters.add(Count.EXPIRATIONS)
            self._delete(tier, key)

    def forget(self, tier: Tier, key: bytes, cause: Cause, *, even_if_held: bool = False) -> bool:
        """Take a block off the books of a shared medium, which ends it by itself or keeps it for others."""
        is_gone = self._index.begin_removal(tier.bit, key, cause, even_if_held=even_if_held)
        if is_gone:
            self._index.confirm_removal(tier.bit, key)
        return is_gone

    def reject(self, tier: Tier, key: bytes) -> None:
        """Remove a block that was found on a medium and is not wanted, unless it was stored meanwhile."""
        if self._index.begin_rejection(tier.bit, key):
            self._delete(tier, key)

    def note_bad(self, tier: Tier, key: bytes, outcome: Read) -> None:
        """Let go of a copy that a read found to be bad; one in a form not known here stays there."""
        if (cause := _CAUSES.get(outcome)) is not None:
            self.remove(tier, key, cause, even_if_held=True)
        elif outcome is Read.UNKNOWN_FORM:
            self.disown(tier, key)

    def disown(self, tier: Tier, key: bytes) -> None:
        """Leave a block that cannot be read here where it is: it is found no more, and still counts."""
        self._index.disown(tier.bit, key)

    def _keep_out(self, tier: Tier, key: bytes) -> None:
        """Remove a block that went into quarantine while it was on its way into a tier."""
        if self._index.is_quarantined(key):
            self.remove(tier, key, Cause.QUARANTINED, even_if_held=True)

    def _delete_behind(self, tier: Tier, key: bytes) -> None:
        """Delete from memory at once, from a medium in the background."""
        if isinstance(tier, MemoryTier) or not tier.pool.delete(lambda: self._delete(tier, key)):
            self._delete(tier, key)

    def _delete(self, tier: Tier, key: bytes) -> None:
        """Delete from the medium; one that is closing keeps it, for it may not answer in time."""
        if not tier.pool.is_closing and tier.delete(key):
            self._index.confirm_removal(tier.bit, key)
        else:
            self._index.removal_failed(tier.bit, key)

    def _retry_stuck(self, tier: Tier) -> None:
        for key in self._index.stuck(tier.bit)[:1]:
            self._delete(tier, key)
