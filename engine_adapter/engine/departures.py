"""How fast requests end, and so when a place in the queue should be free."""

from __future__ import annotations

_LEAST_S = 1.0
_MOST_S = 60.0
_NEW_SHARE = 1 / 8


class Departures:
    """The time between the ends of two requests while there are any, over the last few.

    Written by one thread; ``next_s`` is for any.
    """

    def __init__(self) -> None:
        self._gap_s: float | None = None
        self._since_s: float | None = None

    def began(self, now_s: float) -> None:
        """Note that there is a request."""
        if self._since_s is None:
            self._since_s = now_s

    def ended(self, now_s: float, *, is_last: bool) -> None:
        """Note that one of the requests has ended; ``is_last``: there is none now."""
        if self._since_s is not None:
            self._gap_s = self._averaged(now_s - self._since_s)
        self._since_s = None if is_last else now_s

    def next_s(self, now_s: float, num: int = 1) -> float:
        """Return in how many seconds the next ``num`` should have ended, from 1 to 60.

        When none has ended for longer than is usual, that counts as if one did now.
        """
        elapsed_s = 0.0 if self._since_s is None else now_s - self._since_s
        gap_s = max(self._gap_s or 0.0, self._averaged(elapsed_s))
        return min(max(num * gap_s, _LEAST_S), _MOST_S)

    def _averaged(self, gap_s: float) -> float:
        return gap_s if self._gap_s is None else self._gap_s + _NEW_SHARE * (gap_s - self._gap_s)
