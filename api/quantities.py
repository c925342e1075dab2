"""Amounts for people: sizes and durations as they write them (``2GiB``, ``30d``); sizes and rates to read."""

from __future__ import annotations

import re

from policies.wording import three_digits

_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_SECONDS = {"": 1, "S": 1, "M": 60, "MIN": 60, "H": 3600, "D": 86_400, "W": 7 * 86_400}
_AMOUNT = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_BINARY_UNITS = ("KiB", "MiB", "GiB", "TiB")
_MOST_DIGITS = 30


def parse_bytes(text: str) -> int:
    """Return the bytes that ``text`` names; raises ``ValueError`` saying how sizes are written."""
    match = _AMOUNT.fullmatch(text.strip()) if len(text) < _MOST_DIGITS else None
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError("a size is written like 2GiB, 500MB or a number of bytes")
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def parse_duration(text: str) -> float:
    """Return the seconds that ``text`` names; raises ``ValueError`` saying how durations are written."""
    match = _AMOUNT.fullmatch(text.strip()) if len(text) < _MOST_DIGITS else None
    unit_s = _SECONDS.get(match[2].upper()) if match else None
    if match is None or unit_s is None:
        raise ValueError("a duration is written like 30d, 12h, 15min, 90s or a number of seconds")
    return float(match[1]) * unit_s


def format_bytes(num_bytes: float) -> str:
    """Return a size for people: the largest binary unit that leaves at least 1, with one decimal."""
    if num_bytes < 1024:
        return f"{num_bytes:.0f} B"
    value, unit = float(num_bytes), "B"
    for larger in _BINARY_UNITS:
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}".replace(".0 ", " ")


def format_duration(seconds: float) -> str:
    """Return a time for people in whole seconds, minutes, hours or days, at least two of them."""
    for unit, size_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_rate(bytes_per_s: float) -> str:
    """Return a rate with three digits, in the unit that suits it."""
    unit, size = next((pair for pair in (("GB", 1e9), ("MB", 1e6)) if bytes_per_s >= pair[1]), ("kB", 1e3))
    return f"{three_digits(bytes_per_s / size)} {unit}/s"
