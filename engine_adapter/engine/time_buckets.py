"""Times counted in fixed buckets, so that many of them add up to a few numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

_FIRST_S = 1e-3
_FACTOR = 1.5

BOUNDS_S = tuple(_FIRST_S * _FACTOR**number for number in range(34))
"""Where all buckets but the last one end, each half as long again as the one before: 1 ms to 10 minutes."""


class TimeBuckets:
    """How many times fell into each bucket; ``counts`` has one more than there are bounds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)

    def add(self, time_s: float) -> None:
        """Count one time."""
        self.counts[bisect_left(BOUNDS_S, time_s)] += 1


def quantile_s(counts: Sequence[int], share: float) -> float | None:
    """Return the time that ``share`` of all do not exceed, as near as buckets tell; ``None`` without any.

    Within a bucket times are taken to be spread evenly; one beyond the last bound counts as that.
    """
    wanted = share * sum(counts)
    if not wanted:
        return None
    for number, count in enumerate(counts):
        if count and wanted <= count:
            begin_s = BOUNDS_S[number - 1] if number else 0.0
            end_s = BOUNDS_S[min(number, len(BOUNDS_S) - 1)]
            return begin_s + (end_s - begin_s) * wanted / count
        wanted -= count
    return BOUNDS_S[-1]
