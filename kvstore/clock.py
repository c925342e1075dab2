"""Time, handed in: nothing below ``api`` asks the operating system for it directly."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """Two clocks: ``monotonic_s`` for durations and deadlines, ``wall_ms`` for expiry (epoch)."""

    monotonic_s: Callable[[], float] = time.monotonic
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
