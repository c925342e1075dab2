"""Waiting for what other threads do."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(holds: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait until ``holds()``, or fail."""
    ends_at_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < ends_at_s, "waited in vain"
        time.sleep(0.002)
