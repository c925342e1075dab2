"""A store in another process, as if it were here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvstore.absences import Absence, Cause
from kvstore.clock import Clock
from kvstore.defaults import checked_ttl_ms
from kvstore.errors import InvariantError, LeaseExpiredError, StoreClosedError
from kvstore.frame import copy
from kvstore.interface import Asked, HeldMemory
from kvstore.leases import Hit
from kvstore.loading import OnDone, Ticket
from kvstore.namespace import Namespace
from kvstore.remote.own_pool import OwnPool
from kvstore.remote.remote_hit import RemoteHit
from kvstore.remote.reports import health_told, pinned_told, pins_told, statistics_told
from kvstore.remote.transport import Found, Offer, Transport
from kvstore.remote.wire import NO_TIER, NOWHERE
from kvstore.statistics import Health, State, StoreStatistics
from kvstore.tier import DEVICE
from kvstore.upkeep import Pinned, Pinning

_PUT_WAIT_S = 1.0
_CLEAR_S = 60.0
_FLUSH_S = 3600.0
_NAMESPACES_S = 60.0
_A_MOMENT_S = 0.001


class RemoteStore:
    """The store of a server, with the interface and the meaning of ``TieredStore``. Thread-safe.

    Without the server everything misses, and nothing raises: it is looked for again about once a second.
    Blocks that are loaded are verified copies in memory of our own.
    """

    def __init__(self, transport: Transport, clock: Clock | None = None) -> None:
        self._transport = transport
        self._clock = clock or Clock()
        self._own: dict[bytes, Namespace] = {}
        self._pool = OwnPool(lambda said: transport.ask("pool", 0.0, **said))
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """Whether a server is there, as far as is known."""
        return bool(self._transport.tiers)

    @property
    def tier_names(self) -> tuple[str, ...]:
        """All tiers from the fastest, the engine's own pool first."""
        return self._transport.tiers or (DEVICE,)

    def now_s(self) -> float:
        """Return the time on the clock that deadlines of leases and loads are told in."""
        return self._clock.monotonic_s()

    def own_namespace(self, namespace: Namespace) -> Namespace:
        """Return the namespace that our blocks are kept in; keys are to be chained from its digest."""
        own = self._own.get(namespace.digest) or self._transport.describe(namespace)
        if own is not None:
            self._own[namespace.digest] = self._own[own.digest] = own
        return own or namespace

    def register_namespace(self, namespace: Namespace) -> None:
        """Tell the server of a namespace, once."""
        self.own_namespace(namespace)

    def lookup(
        self, keys: Sequence[bytes], lease_s: float | None = None, ttl_s: float | None = None
    ) -> RemoteHit:
        """Return where each block is, with a lease; see ``TieredStore.lookup``. Raises ``RequestError``."""
        _refuse_odd(ttl_s)
        found = self._transport.look_up(keys, lease_s, ttl_s) if keys else None
        if found is None or len(found.places) != len(keys):
            found = Found(0, math.inf, [NOWHERE] * len(keys))
        names = self._transport.tiers
        told = [names[place.tier] if place.tier < len(names) else None for place in found.places]
        tiers, deadline_s = self._with_device(keys, told), self.now_s() + found.left_s
        return RemoteHit(keys, tiers, deadline_s, found, self._transport)

    def peek(self, keys: Sequence[bytes]) -> tuple[str | None, ...]:
        """Return each block's fastest tier; see ``TieredStore.peek``."""
        told = self._transport.ask("peek", keys=_hexadecimal(keys)) or [None] * len(keys)
        return self._with_device(keys, told)

    def why_absent(self, key: bytes) -> Absence:
        """Return what became of a block; see ``TieredStore.why_absent``."""
        told = self._transport.ask("why_absent", keys=_hexadecimal([key]))
        if told is None:
            return Absence(Cause.PAUSED, "")
        ((cause, tier, at_ms),) = told
        return Absence(Cause(cause), tier, at_ms)

    def inquire(
        self,
        keys: Sequence[bytes],
        deadline_s: float,
        on_done: OnDone | None = None,
        block_bytes: int | None = None,
    ) -> Asked | None:
        """Have the server ask the tiers that must be asked; see ``TieredStore.inquire``."""
        self._refuse_when_closed()
        if not keys or not self._transport.asks_media:
            return None
        timeout_s = max(0.0, deadline_s - self.now_s())
        return self._transport.inquire(keys, timeout_s, block_bytes, on_done)

    def load(self, hit: Hit, index: int, deadline_s: float, on_done: OnDone | None = None) -> Ticket:
        """Begin to load a leased block; see ``TieredStore.load``."""
        self._refuse_when_closed()
        if not isinstance(hit, RemoteHit):
            raise InvariantError("a hit of another store")
        late_s = self.now_s() - hit.deadline_s
        if late_s >= 0 or not hit.is_leased:
            hit.release()
            raise LeaseExpiredError(max(late_s, 0.0))
        if hit.found.places[index].tier == NO_TIER:
            return Ticket.of(None)
        timeout_s = max(0.0, deadline_s - self.now_s())
        return self._transport.load(hit.found, index, timeout_s, on_done)

    def reserve(
        self, namespace: Namespace, key: bytes, parent: bytes, nbytes: int, *, num_tokens: int | None = None,
        first_token: int | None = None, ttl_s: float | None = None,
    ) -> HeldMemory | None:  # fmt: skip
        """Offer a block; see ``TieredStore.reserve``. ``None`` also when too much is under way.

        Raises ``RequestError``.
        """
        _refuse_odd(ttl_s)
        own = self.own_namespace(namespace)
        return self._reserve(Offer(own.digest, key, parent, nbytes, num_tokens, first_token, ttl_s), 0.0)

    def put(
        self,
        namespace: Namespace,
        key: bytes,
        parent: bytes,
        payload: memoryview,
        *,
        first_token: int | None = None,
        ttl_s: float | None = None,
    ) -> bool:
        """Store a copy of ``payload``; waits a moment for memory. ``False``: nothing was stored.

        Raises ``RequestError``.
        """
        _refuse_odd(ttl_s)
        own = self.own_namespace(namespace)
        offer = Offer(own.digest, key, parent, len(payload), None, first_token, ttl_s)
        reservation = self._reserve(offer, _PUT_WAIT_S)
        if reservation is None:
            return False
        copy(payload, reservation.view)
        reservation.commit()
        return True

    def get_into(self, key: bytes, out: memoryview, timeout_s: float = 10.0) -> bool:
        """Read a block of ``len(out)`` bytes into ``out``; may block on I/O. ``False``: a miss."""
        self._refuse_when_closed()
        hit = self.lookup([key], lease_s=timeout_s + 1.0)
        try:
            (place,) = hit.found.places
            if place.tier == NO_TIER or place.nbytes != len(out):
                return False
            return self._transport.load_into(hit.found, 0, out, timeout_s)
        finally:
            hit.release()

    def device_added(self, key: bytes, parent: bytes, namespace: Namespace | None = None) -> None:
        """Note that the engine's pool now holds this block; without a namespace nobody watches it."""
        own = None if namespace is None else self.own_namespace(namespace)
        self._pool.add(key, parent, b"" if own is None else own.digest)

    def device_removed(self, key: bytes) -> None:
        """Note that the engine's pool no longer holds this block."""
        self._pool.remove(key)

    def ended(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return those of ``keys`` that the engine's pool must not share any more, as far as was told.

        The server tells about twice a second whose time is over, and what is in quarantine.
        """
        return self._pool.ended(keys)

    def over_on_device(self) -> list[bytes]:
        """Return the blocks whose time is over that the engine's pool still has: it is to let go of them."""
        return self._pool.over()

    def watch_device(self, on_over: Callable[[], None]) -> None:
        """Have ``on_over`` called, on another thread, while ``over_on_device`` names blocks."""
        self._pool.on_over = on_over

    def pin(
        self,
        keys: Sequence[bytes],
        *,
        for_s: float | None = None,
        until_s: float | None = None,
        tiers: Sequence[str] | None = None,
    ) -> Pinned:
        """Keep a prefix; see ``TieredStore.pin``. Without a server nothing is. Raises ``AccessError``."""
        named = None if tiers is None else list(tiers)
        told = self._transport.ask("pin", keys=_hexadecimal(keys), for_s=for_s, until_s=until_s, tiers=named)
        return Pinned("", 0, {}, 0, tuple(keys)) if told is None else pinned_told(told)

    def unpin(self, keys: Sequence[bytes], tiers: Sequence[str] | None = None) -> int:
        """Let a prefix be ordinary again; see ``TieredStore.unpin``. Raises ``AccessError``."""
        named = None if tiers is None else list(tiers)
        return int(self._transport.ask("unpin", keys=_hexadecimal(keys), tiers=named) or 0)

    def pins(self, limit: int = 1000) -> list[Pinning]:
        """Return what is pinned; see ``TieredStore.pins``."""
        return pins_told(self._transport.ask("pins", limit=limit) or [])

    def known_namespaces(self, timeout_s: float = 5.0) -> list[Namespace]:
        """Return the namespaces that the server knows; see ``TieredStore.known_namespaces``."""
        told = self._transport.ask("known_namespaces", _bounded(timeout_s, _NAMESPACES_S)) or []
        return [Namespace.from_manifest(manifest) for manifest in told]

    def evict(self, keys: Iterable[bytes]) -> int:
        """Remove blocks from every tier; see ``TieredStore.evict``. Raises ``AccessError``."""
        return int(self._transport.ask("evict", keys=_hexadecimal(keys)) or 0)

    def clear(self, tier: str | None = None) -> int:
        """Remove every block that is not in use; see ``TieredStore.clear``. Raises ``AccessError``."""
        num_gone = int(self._transport.ask("clear", _CLEAR_S, tier=tier) or 0)
        if tier is None:
            self._pool.end_quarantine()
        return num_gone

    def quarantine(self, key: bytes) -> None:
        """Remove a wrong block from every tier and keep it out; see ``TieredStore.quarantine``."""
        self._pool.quarantine(key)
        self._transport.ask("quarantine", keys=_hexadecimal([key]))

    def flush(self, timeout_s: float) -> bool:
        """Block until what was stored has reached the lower tiers; says whether it has."""
        ends_s = time.monotonic() + timeout_s
        if not self._transport.wait_until_sent(timeout_s):
            return False
        return bool(self._transport.ask("flush", _bounded(ends_s - time.monotonic(), _FLUSH_S)))

    def health(self) -> Health:
        """Return the state of the server's tiers, or that there is no server."""
        told = self._transport.ask("health")
        if told is not None:
            return health_told(told)
        reason = "closed" if self._closed else f"runs without its store: {self._transport.why_lost}"
        return Health(State.UNHEALTHY, {}, reason)

    def statistics(self) -> StoreStatistics:
        """Return the server's counts; nothing without a server."""
        told = self._transport.ask("statistics")
        return StoreStatistics((), 0, 0, 0) if told is None else statistics_told(told)

    def check(self) -> None:
        """Raise ``InvariantError`` when our own books contradict each other."""
        self._transport.check()

    def close(self, deadline_s: float = 10.0) -> None:
        """Send what is to be sent, and part with the server; returns within ``deadline_s``."""
        if not self._closed:
            self._pool.stop()
            self._transport.wait_until_sent(deadline_s / 2)
            self._closed = True
            self._transport.close()

    def _reserve(self, offer: Offer, wait_s: float) -> HeldMemory | None:
        return None if self._closed else self._transport.reserve(offer, wait_s)

    def _with_device(self, keys: Sequence[bytes], told: Sequence[Any]) -> tuple[str | None, ...]:
        return tuple(DEVICE if key in self._pool else tier for key, tier in zip(keys, told, strict=True))

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise StoreClosedError


def _refuse_odd(ttl_s: float | None) -> None:
    if ttl_s is not None:
        checked_ttl_ms(ttl_s)


def _bounded(timeout_s: float, most_s: float) -> float:
    """Return a time that servers take: some, and not too much."""
    return min(max(_A_MOMENT_S, timeout_s), most_s)


def _hexadecimal(keys: Iterable[bytes]) -> list[str]:
    return [key.hex() for key in keys]
