"""What is known of a server while it is there, and looked for again when it is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from kvstore.clock import Clock
from kvstore.errors import AccessError, ChannelError, ConfigError

_RETRY_S = 1.0
_T = TypeVar("_T")


class Reconnecting(Generic[_T]):
    """Holds what ``connect`` returned while that is good, and calls it again about once a second if not.

    Thread-safe: while one looks for the server, the others do without it. ``connect`` raises
    ``ChannelError`` when no server is there, ``AccessError`` or ``ConfigError`` if it sends us away.
    """

    def __init__(self, connect: Callable[[], _T], clock: Clock) -> None:
        self.why_lost = ""
        self._connect = connect
        self._clock = clock
        self._current: _T | None = None
        self._retry_at_s = -math.inf
        self._connecting = Lock()
        self.is_closed = False

    @property
    def current(self) -> _T | None:
        """What is there, without looking for it."""
        return self._current

    def live(self) -> _T | None:
        """Return what is there, looking for it if it is time; ``None``: nothing is. Raises nothing."""
        if self._current is None and self._clock.monotonic_s() >= self._retry_at_s:
            try:
                self.look()
            except (AccessError, ConfigError) as error:
                self.why_lost = str(error)
        return None if self.is_closed else self._current

    def look(self) -> None:
        """Look for the server now, unless somebody does already. Raises what says that it sends us away."""
        if self.is_closed or not self._connecting.acquire(blocking=False):
            return
        try:
            self._retry_at_s = self._clock.monotonic_s() + _RETRY_S
            self._current = self._connect()
        except ChannelError as error:
            self.why_lost = error.reason
        finally:
            self._connecting.release()

    def lose(self, reason: str) -> None:
        """Note that what was there is good no more."""
        self._current, self.why_lost = None, reason

    def close(self) -> None:
        """Look for it no more."""
        self.is_closed = True
