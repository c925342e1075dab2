"""A store in another process of this machine, as if it were here."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from kvstore.absences import Absence, Cause
from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.errors import ChannelError, InvariantError, LeaseExpiredError, StoreClosedError
from kvstore.leases import Hit
from kvstore.loading import OnDone, Ticket
from kvstore.namespace import Namespace
from kvstore.remote import wire
from kvstore.remote.channel import Message
from kvstore.remote.connection import ClientConfig, Reconnecting
from kvstore.remote.hits import RemoteHit, RemoteReservation
from kvstore.remote.link import Link
from kvstore.remote.pending import Pending, RemoteInquiry
from kvstore.remote.wire import NO_TIER, UNKNOWN, Kind, Place
from kvstore.statistics import Health, State, StoreStatistics, TierHealth, TierStatistics
from kvstore.tier import DEVICE

_PUT_WAIT_S = 1.0
_LONG_S = 60.0


class RemoteStore(Reconnecting):
    """The store of a server, with the interface and the meaning of ``TieredStore``. Thread-safe.

    Without a server everything misses, and nothing raises: it is looked for again about once a second.
    Blocks that are loaded are verified copies in memory of our own.
    """

    def __init__(self, config: ClientConfig, clock: Clock | None = None) -> None:
        """Connect, if a server answers. Raises ``AccessError`` or ``ConfigError`` if it sends us away."""
        self._arena = Arena(config.memory_bytes)
        self._pending = Pending(self._arena)
        self._described: dict[bytes, Namespace] = {}  # by the digest that we know them by
        self._own: dict[bytes, Namespace] = {}  # likewise, as the server has them
        self._on_device: dict[bytes, int] = {}
        self._quarantined: set[bytes] = set()
        super().__init__(config, clock or Clock())

    @property
    def tier_names(self) -> tuple[str, ...]:
        """All tiers from the fastest, the engine's own pool first."""
        link = self._live()
        return (DEVICE,) if link is None else link.tiers

    def now_s(self) -> float:
        """Return the time on the clock that deadlines of leases and loads are told in."""
        return self._clock.monotonic_s()

    def own_namespace(self, namespace: Namespace) -> Namespace:
        """Return the namespace that our blocks are kept in; keys are to be chained from its digest."""
        own = self._own.get(namespace.digest)
        link = self._live() if own is None else None
        if link is not None:
            self._described[namespace.digest] = namespace
            with suppress(ChannelError):
                own = self._describe(link, namespace)
        return own or namespace

    def register_namespace(self, namespace: Namespace) -> None:
        """Tell the server of a namespace, once."""
        self.own_namespace(namespace)

    def lookup(
        self, keys: Sequence[bytes], lease_s: float | None = None, ttl_s: float | None = None
    ) -> RemoteHit:
        """Return where each block is, with a lease; see ``TieredStore.lookup``."""
        link, places, lease, left_s = self._live(), list[Place](), 0, math.inf
        if link is not None and keys:
            try:
                asked = wire.ASKED.pack(_or_nan(lease_s), _or_nan(ttl_s))
                answer = link.call(Kind.LOOKUP, asked, b"".join(keys))
                lease, left_s, num = wire.unpack(wire.HIT_HEAD, answer.body)
                places = wire.unpack_places(answer.body[wire.HIT_HEAD.size :])[:num]
            except ChannelError:
                lease, places = 0, []
        if len(places) != len(keys):
            lease, places = 0, [wire.NOWHERE] * len(keys)
        tiers = tuple(self._tier(key, place, link) for key, place in zip(keys, places, strict=True))
        return RemoteHit(keys, tiers, places, self._clock.monotonic_s() + left_s, lease, link)

    def peek(self, keys: Sequence[bytes]) -> tuple[str | None, ...]:
        """Return each block's fastest tier; see ``TieredStore.peek``."""
        tiers = self._ask("peek", keys=_hexadecimal(keys)) or [None] * len(keys)
        return tuple(
            DEVICE if key in self._on_device else tier for key, tier in zip(keys, tiers, strict=True)
        )

    def why_absent(self, key: bytes) -> Absence:
        """Return what became of a block; see ``TieredStore.why_absent``."""
        told = self._ask("why_absent", keys=_hexadecimal([key]))
        if told is None:
            return Absence(Cause.PAUSED, "")
        cause, tier, at_ms = told
        return Absence(Cause[cause], tier, at_ms)

    def inquire(
        self,
        keys: Sequence[bytes],
        deadline_s: float,
        on_done: OnDone | None = None,
        block_bytes: int | None = None,
    ) -> RemoteInquiry | None:
        """Have the server ask the tiers that must be asked; see ``TieredStore.inquire``."""
        self._refuse_when_closed()
        link = self._live()
        if link is None or not keys or not link.facts["asks_media"]:
            return None
        timeout_s = max(0.0, deadline_s - self._clock.monotonic_s())
        nbytes = UNKNOWN if block_bytes is None else block_bytes
        return self._pending.inquire(link, keys, timeout_s, nbytes, on_done)

    def load(self, hit: Hit, index: int, deadline_s: float, on_done: OnDone | None = None) -> Ticket:
        """Load a leased block: from the server's memory at once; see ``TieredStore.load``."""
        self._refuse_when_closed()
        if not isinstance(hit, RemoteHit):
            raise InvariantError("a hit of another store")
        late_s = self._clock.monotonic_s() - hit.deadline_s
        if late_s >= 0 or not hit.is_leased:
            hit.release()
            raise LeaseExpiredError(max(late_s, 0.0))
        place = hit.places[index]
        if hit.link is None or place.tier == NO_TIER:
            return Ticket.of(None)
        if place.slab:
            return Ticket.of(self._pending.copy(hit.link, place))
        timeout_s = max(0.0, deadline_s - self._clock.monotonic_s())
        return self._pending.load(hit.link, hit.lease, index, timeout_s, on_done)

    def reserve(
        self, namespace: Namespace, key: bytes, parent: bytes, nbytes: int, *, num_tokens: int | None = None,
        first_token: int | None = None, ttl_s: float | None = None,
    ) -> RemoteReservation | None:  # fmt: skip
        """Offer a block; see ``TieredStore.reserve``. ``None`` also when too much is under way."""
        return self._reserve(namespace, key, parent, nbytes, num_tokens, first_token, ttl_s, 0.0)

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
        """Store a copy of ``payload``; waits a moment for memory. ``False``: nothing was stored."""
        reservation = self._reserve(
            namespace, key, parent, len(payload), None, first_token, ttl_s, _PUT_WAIT_S
        )
        if reservation is None:
            return False
        reservation.view[:] = payload
        reservation.commit()
        return True

    def get_into(self, key: bytes, out: memoryview, timeout_s: float = 10.0) -> bool:
        """Read a block of ``len(out)`` bytes into ``out``; may block on I/O. ``False``: a miss."""
        self._refuse_when_closed()
        hit = self.lookup([key], lease_s=timeout_s + 1.0)
        try:
            (place,) = hit.places
            if hit.link is None or place.tier == NO_TIER:
                return False
            if place.slab:
                return _copied(hit.link, place, out)
            return self._load_into(hit, out, timeout_s)
        finally:
            hit.release()

    def device_added(self, key: bytes, parent: bytes) -> None:  # noqa: ARG002  the interface is the store's
        """Note that the engine's pool now holds this block."""
        self._on_device[key] = 0

    def device_removed(self, key: bytes) -> None:
        """Note that the engine's pool no longer holds this block."""
        self._on_device.pop(key, None)

    def ended(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return those of ``keys`` that the engine's pool must not share any more."""
        now_ms = self._clock.wall_ms()
        return [key for key in keys if key in self._quarantined or 0 < self._on_device.get(key, 0) <= now_ms]

    def known_namespaces(self, timeout_s: float = 5.0) -> list[Namespace]:
        """Return the namespaces that the server knows; see ``TieredStore.known_namespaces``."""
        told = self._ask_long("known_namespaces", timeout_s) or []
        return [Namespace.from_manifest(manifest) for manifest in told]

    def evict(self, keys: Iterable[bytes]) -> int:
        """Remove blocks from every tier; see ``TieredStore.evict``."""
        return self._ask("evict", keys=_hexadecimal(keys)) or 0

    def clear(self, tier: str | None = None) -> int:
        """Remove every block that is not in use; see ``TieredStore.clear``. Raises ``AccessError``."""
        self._quarantined.clear()
        return self._ask_long("clear", _LONG_S, tier=tier) or 0

    def quarantine(self, key: bytes) -> None:
        """Remove a wrong block from every tier and keep it out; see ``TieredStore.quarantine``."""
        self._quarantined.add(key)
        self._ask("quarantine", keys=_hexadecimal([key]))

    def flush(self, timeout_s: float) -> bool:
        """Block until what was stored has reached the lower tiers; says whether it has."""
        link, ends_s = self._live(), time.monotonic() + timeout_s
        if link is None or not link.staging.wait_until_unused(timeout_s):
            return False
        return bool(self._ask_long("flush", max(0.0, ends_s - time.monotonic())))

    def health(self) -> Health:
        """Return the state of the server's tiers, or that there is no server."""
        told = self._ask("health")
        if told is None:
            reason = "closed" if self._closed else f"runs without its store: {self._why_lost}"
            return Health(State.UNHEALTHY, {}, reason)
        tiers = {name: TierHealth(State[state], why) for name, (state, why) in told["tiers"].items()}
        return Health(State[told["state"]], tiers, told["reason"])

    def statistics(self) -> StoreStatistics:
        """Return the server's counts; nothing without a server."""
        told = self._ask("statistics")
        if told is None:
            return StoreStatistics((), 0, 0, 0)
        tiers = tuple(TierStatistics(**tier) for tier in told.pop("tiers"))
        return StoreStatistics(tiers, **told)

    def check(self) -> None:
        """Raise ``InvariantError`` when our own books contradict each other."""
        self._arena.check()
        if (link := self._link) is not None:
            link.staging.check()

    def close(self, deadline_s: float = 10.0) -> None:
        """Part with the server, which gives back what we held; returns within ``deadline_s``."""
        if self._closed:
            return
        link = self._link
        if link is not None:
            link.staging.wait_until_unused(deadline_s / 2)
        self._closed = True
        if link is not None:
            link.lose()
        self._arena.close()

    def _reserve(
        self, namespace: Namespace, key: bytes, parent: bytes, nbytes: int, num_tokens: int | None,
        first_token: int | None, ttl_s: float | None, wait_s: float,
    ) -> RemoteReservation | None:  # fmt: skip
        own = self.own_namespace(namespace)
        link = self._live()
        start = link.staging.take(nbytes, wait_s) if link is not None else None
        if link is None or start is None:
            return None
        known_tokens, known_first = (UNKNOWN if n is None else n for n in (num_tokens, first_token))
        offered = wire.OFFERED.pack(nbytes, known_tokens, known_first, _or_nan(ttl_s), len(parent))
        try:
            answer = link.call(Kind.RESERVE, offered, own.digest, key, parent)
            (number,) = wire.unpack(wire.NUMBER, answer.body)
        except ChannelError:
            number = 0
        if number:
            return RemoteReservation(link, number, start, nbytes, self._pending)
        link.staging.give_back(start)
        return None

    def _load_into(self, hit: RemoteHit, out: memoryview, timeout_s: float) -> bool:
        ticket = self.load(hit, 0, self._clock.monotonic_s() + timeout_s)
        if not ticket.wait(timeout_s):
            ticket.abandon()
            return False
        block = ticket.take()
        if block is None:
            return False
        is_same_size = len(block.data) == len(out)
        if is_same_size:
            out[:] = block.data
        block.release()
        return is_same_size

    def _tier(self, key: bytes, place: Place, link: Link | None) -> str | None:
        if key in self._on_device:
            return DEVICE
        return None if link is None or place.tier >= len(link.tiers) else link.tiers[place.tier]

    def _describe(self, link: Link, namespace: Namespace) -> Namespace:
        answer = link.call(Kind.NAMESPACE, namespace.manifest().encode())
        try:
            own = Namespace.from_manifest(bytes(answer.body).decode())
        except ValueError as error:
            raise ChannelError(f"the server's namespace cannot be read: {error}") from error
        self._own[namespace.digest] = self._own[own.digest] = own
        return own

    def _greet(self, link: Link) -> None:
        for namespace in list(self._described.values()):
            self._describe(link, namespace)

    def _hear(self, link: Link, message: Message) -> None:
        self._pending.hear(link, message)

    def _lost(self, link: Link) -> None:
        super()._lost(link)
        self._pending.lost(link)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise StoreClosedError


def _copied(link: Link, place: Place, out: memoryview) -> bool:
    try:
        return link.copy(place, out)
    except ChannelError:
        return False


def _or_nan(seconds: float | None) -> float:
    return math.nan if seconds is None else seconds


def _hexadecimal(keys: Iterable[bytes]) -> str:
    return b"".join(keys).hex()
