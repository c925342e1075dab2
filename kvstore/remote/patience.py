"""How long a client may make the store wait for a medium."""

from __future__ import annotations

_SHORTEST_S = 1.0
_LONGEST_S = 600.0


def patience_s(timeout_s: float) -> float:
    """Return how long a client's load or inquiry may take before it counts as a fault of its medium.

    What a client gives up sooner is its own affair: it must not have a medium paused for all others.
    """
    return min(max(_SHORTEST_S, timeout_s), _LONGEST_S)
