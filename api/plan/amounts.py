"""Rates, times and counts as people write them: ``2.9GB/s``, ``25Gbit/s``, ``0.5ms``, ``8B``."""

from __future__ import annotations

import math
import re

from policies.cost_model import LoadCost

_NUMBER = r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)"
_RATE = re.compile(_NUMBER + r"\s*([kmgt]?)(b|bit)?(?:/s)?", re.IGNORECASE)
_TIME = re.compile(_NUMBER + r"\s*(s|ms|us)?", re.IGNORECASE)
_COUNT = re.compile(_NUMBER + r"\s*([kmbt]?)", re.IGNORECASE)
_THOUSANDS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def parse_line(text: str) -> LoadCost:
    """Return what ``rate,latency`` says, the latter optional. Raises ``ValueError``: how it is written."""
    rate, _, latency = text.partition(",")
    bytes_per_s = parse_rate(rate)
    return LoadCost(parse_seconds(latency) if latency else 0.0, bytes_per_s)


def parse_rate(text: str) -> float:
    """Return bytes a second; ``bit`` makes it bits. Raises ``ValueError``."""
    match = _RATE.fullmatch(text.strip())
    bytes_per_s = float(match[1]) * _THOUSANDS[match[2].lower()] if match else 0.0
    if match is None or not 0 < bytes_per_s < math.inf:
        raise ValueError("a rate is written like 2.9GB/s, 25Gbit/s or a number of bytes a second")
    return bytes_per_s / 8 if (match[3] or "").lower() == "bit" else bytes_per_s


def parse_seconds(text: str) -> float:
    """Return seconds. Raises ``ValueError``."""
    match = _TIME.fullmatch(text.strip())
    seconds = float(match[1]) * _SECONDS[(match[2] or "s").lower()] if match else math.inf
    if seconds == math.inf:
        raise ValueError("a time is written like 0.5ms, 100us or a number of seconds")
    return seconds


def parse_count(text: str) -> float:
    """Return a number of things above zero. Raises ``ValueError``."""
    match = _COUNT.fullmatch(text.strip())
    count = float(match[1]) * _THOUSANDS[match[2].lower()] if match else 0.0
    if not 0 < count < math.inf:
        raise ValueError("a number is written like 8B, 135M or 8.03e9, and is more than 0")
    return count
