"""A client's connection to a store's server: made when it can be, and again when it was lost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from kvstore.clock import Clock
from kvstore.errors import AccessError, ChannelError, ConfigError
from kvstore.remote.channel import Message
from kvstore.remote.link import Link

_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """A client's socket and token, and how much memory loaded blocks may take here at once."""

    path: Path
    token: str | None = None
    memory_bytes: int = 256 << 20


class Reconnecting:
    """Asks a server what it can, and does without it while it is not there. Thread-safe."""

    def __init__(self, config: ClientConfig, clock: Clock) -> None:
        """Connect, if a server answers. Raises ``AccessError`` or ``ConfigError`` if it sends us away."""
        self.config = config
        self._clock = clock
        self._link: Link | None = None
        self._why_lost = ""
        self._retry_at_s = -math.inf
        self._connecting = Lock()
        self._closed = False
        self._connect()

    @property
    def is_connected(self) -> bool:
        """Whether a server is there, as far as is known."""
        return self._link is not None

    def _ask(self, method: str, **said: object) -> Any:
        link = self._live()
        if link is None:
            return None
        try:
            return link.call_method(method, **said)
        except ChannelError:
            return None

    def _ask_long(self, method: str, timeout_s: float, **said: object) -> Any:
        link = self._live()
        if link is None:
            return None
        try:
            return link.call_long(method, timeout_s, **said)
        except ChannelError:
            return None

    def _live(self) -> Link | None:
        link = self._link
        if link is None and not self._closed and self._clock.monotonic_s() >= self._retry_at_s:
            try:
                self._connect()
            except (AccessError, ConfigError) as error:
                self._why_lost = str(error)
            link = self._link
        return link

    def _connect(self) -> None:
        """Look for the server, unless somebody does already."""
        if not self._connecting.acquire(blocking=False):
            return
        try:
            self._retry_at_s = self._clock.monotonic_s() + _RETRY_S
            link = Link(self.config.path, self.config.token, self._hear, self._lost)
            self._greet(link)
            self._link = link
        except ChannelError as error:
            self._why_lost = error.reason
        finally:
            self._connecting.release()

    def _lost(self, link: Link) -> None:
        if self._link is link:
            self._link = None
            self._why_lost = "the server has ended the connection"

    def _greet(self, link: Link) -> None:
        """Tell a server, which may be another one, what it has to know of us."""
        raise NotImplementedError

    def _hear(self, link: Link, message: Message) -> None:
        """Take in what the server tells."""
        raise NotImplementedError
