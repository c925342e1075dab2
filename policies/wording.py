"""Numbers in the sentences that people read."""

from __future__ import annotations

# From this part of a unit on, three digits are one of it.
_ALMOST_ONE = 0.9995


def format_seconds(seconds: float) -> str:
    """Return a time with three digits, in the unit that suits it: ``2.5 s``, ``40 ms``, ``100 us``."""
    for unit, size_s in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= _ALMOST_ONE * size_s:
            return f"{three_digits(seconds / size_s)} {unit}"
    return f"{three_digits(seconds * 1e6)} us"


def three_digits(value: float) -> str:
    """Return a number from 0 on, with all its digits before the point where there are more than three."""
    return f"{value:.0f}" if value >= 100 * _ALMOST_ONE else f"{value:.3g}"
