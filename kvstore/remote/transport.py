"""How a client and a store's server speak, whatever lies between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from kvstore.interface import Asked, HeldMemory
from kvstore.loading import OnDone, Ticket
from kvstore.namespace import Namespace
from kvstore.remote.wire import Place


class Offer(NamedTuple):
    """A block that a client would like to store; see ``TieredStore.reserve``."""

    namespace: bytes
    key: bytes
    parent: bytes
    nbytes: int
    num_tokens: int | None = None
    first_token: int | None = None
    ttl_s: float | None = None


class Found(NamedTuple):
    """What a server answered to a lookup: ``lease`` 0 holds nothing; ``held_by`` is the transport's own."""

    lease: int
    left_s: float
    places: Sequence[Place]
    held_by: object = None


class Transport(Protocol):
    """Speaks with one server, and does without it while it is not there. Thread-safe.

    What cannot be had of the server is ``None``. Raises ``AccessError`` for what the token does not allow,
    ``ConfigError`` for what the server refuses otherwise.
    """

    @property
    def tiers(self) -> tuple[str, ...]:
        """The server's tiers from the fastest; empty: it is not there."""
        ...

    @property
    def asks_media(self) -> bool:
        """Whether the server has tiers that must be asked what they hold."""
        ...

    @property
    def why_lost(self) -> str:
        """Why the server is not there."""
        ...

    def describe(self, namespace: Namespace) -> Namespace | None:
        """Return the namespace that the server uses for this one; it is told again when it comes back."""
        ...

    def look_up(self, keys: Sequence[bytes], lease_s: float | None, ttl_s: float | None) -> Found | None:
        """Look blocks up, in one exchange, after what was committed here."""
        ...

    def release(self, found: Found) -> None:
        """Give a lease back; never blocks for long."""
        ...

    def load(self, found: Found, index: int, timeout_s: float, on_done: OnDone | None) -> Ticket:
        """Begin to bring a found block here, verified; see ``TieredStore.load``."""
        ...

    def load_into(self, found: Found, index: int, out: memoryview, timeout_s: float) -> bool:
        """Bring a found block into ``out``, of its length; blocks. ``False``: a miss."""
        ...

    def reserve(self, offer: Offer, wait_s: float) -> HeldMemory | None:
        """Offer a block; waits up to ``wait_s`` for memory here."""
        ...

    def inquire(
        self, keys: Sequence[bytes], timeout_s: float, block_bytes: int | None, on_done: OnDone | None
    ) -> Asked | None:
        """Have the server ask its media; ``None``: there is nothing to ask."""
        ...

    def ask(self, method: str, timeout_s: float = 0.0, **said: object) -> Any:
        """Return what a method of the server answers, which may take ``timeout_s``."""
        ...

    def wait_until_sent(self, timeout_s: float) -> bool:
        """Block until what was committed here has reached the server; says whether it has."""
        ...

    def check(self) -> None:
        """Raise ``InvariantError`` when the books of memory here contradict each other."""
        ...

    def close(self) -> None:
        """Part with the server, which gives back what was held; idempotent."""
        ...
