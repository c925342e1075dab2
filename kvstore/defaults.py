"""When a block ends in each tier: its own ends, and what counts for uses that name none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvstore.errors import RequestError
from kvstore.frame import NEVER_MS, Expiry
from kvstore.record import FOREVER_MS, Record
from kvstore.retention import MAX_LIFETIME_S


class Use(NamedTuple):
    """A lookup or store of blocks at ``now_ms``. ``until_ms`` is the soft end it names, 0: it names none.

    ``sure_ms`` is until when what it is used in lives on in every tier, but for hard ends.
    """

    now_ms: int
    until_ms: int
    sure_ms: int

    def outlasts(self, earlier: Use) -> bool:
        """Say whether this use, of what ``earlier`` keeps alive by now, makes up for ``earlier``."""
        is_alike = bool(self.until_ms) == bool(earlier.until_ms)
        return is_alike and self.sure_ms >= earlier.sure_ms > self.now_ms

    def is_within(self, record: Record) -> bool:
        """Say whether a block lives as long without this use."""
        return record.named_ms >= self.until_ms if self.until_ms else record.used_ms >= self.now_ms


class Defaults:
    """``ttls_ms`` are the soft TTLs of uses that name none, one per tier; ``FOREVER_MS`` for no end. Pure.

    ::

        use, named until N   |------------------------------> N
        use, naming none           |--- tier 1 ---> E1
                                   |----------- tier 2 -----------> E2
        alive in tier 1      ================================ N
        alive in tier 2      ======================================= E2     (each until the hard end at most)
    """

    def __init__(self, ttls_ms: Sequence[int]) -> None:
        self.ttls_ms = tuple(ttls_ms)
        self.shortest_ms = min(ttls_ms)

    def use(self, now_ms: int, ttl_ms: int | None) -> Use:
        """Return a use with a TTL of its own; ``None``: it names none."""
        if ttl_ms is None:
            return Use(now_ms, 0, now_ms + self.shortest_ms)
        return Use(now_ms, now_ms + ttl_ms, now_ms + ttl_ms)

    def soft_ms(self, record: Record, bit: int) -> int:
        """Return the soft end of a block in a tier; one that was told none has none."""
        if record.used_ms:
            return max(record.named_ms, record.used_ms + self.ttls_ms[bit])
        return record.named_ms or FOREVER_MS

    def is_behind(self, record: Record, mask: int, now_ms: int) -> bool:
        """Say whether a header in a tier of ``mask`` lags by an eighth of the life that is left.

        A hard end counts at once.
        """
        left = record.tiers & mask
        if left and record.hard_ms != record.kept_hard_ms:
            return True
        while left:
            lowest = left & -left
            bit = lowest.bit_length() - 1
            end_ms, kept_ms = self.soft_ms(record, bit), record.kept_named_ms
            if record.kept_used_ms:
                kept_ms = max(kept_ms, record.kept_used_ms + self.ttls_ms[bit])
            if 8 * (end_ms - kept_ms) >= end_ms - now_ms:
                return True
            left ^= lowest
        return False

    def end_ms(self, record: Record, bit: int) -> int:
        """Return when a block ends in a tier."""
        return min(record.hard_ms, self.soft_ms(record, bit))

    def is_over(self, record: Record, bit: int, now_ms: int) -> bool:
        """Say whether a block's time in a tier is over."""
        return self.end_ms(record, bit) <= now_ms

    def over(self, record: Record, now_ms: int) -> int:
        """Return those tiers that have the block in which its time is over now, as a mask."""
        left, mask = record.tiers | record.unreadable, 0
        if record.hard_ms <= now_ms:
            return left
        while left:
            lowest = left & -left
            if self.is_over(record, lowest.bit_length() - 1, now_ms):
                mask |= lowest
            left ^= lowest
        return mask

    def next_ms(self, record: Record) -> int:
        """Return the soonest end in the tiers that have the block."""
        left, soonest_ms = record.tiers | record.unreadable, record.hard_ms
        while left:
            lowest = left & -left
            soonest_ms = min(soonest_ms, self.soft_ms(record, lowest.bit_length() - 1))
            left ^= lowest
        return soonest_ms

    def expiry(self, record: Record, bit: int) -> Expiry:
        """Return both ends as a header in that tier carries them."""
        soft_ms = self.soft_ms(record, bit)
        return Expiry(_in_header(soft_ms), _in_header(record.hard_ms))


def ttl_ms(ttl_s: float | None) -> int:
    """Return a TTL in whole milliseconds, at least one; ``None``: for ever."""
    return FOREVER_MS if ttl_s is None else max(1, round(ttl_s * 1000))


def checked_ttl_ms(ttl_s: float, param: str = "ttl_s") -> int:
    """Do so for a request's. Raises ``RequestError`` unless it is above 0 and at most a century."""
    if not 0 < ttl_s <= MAX_LIFETIME_S:
        raise RequestError(param, f"must be above 0 and at most {MAX_LIFETIME_S} seconds")
    return ttl_ms(ttl_s)


def _in_header(end_ms: int) -> int:
    return NEVER_MS if end_ms >= FOREVER_MS else end_ms
