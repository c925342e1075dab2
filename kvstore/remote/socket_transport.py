"""Speaks with a store's server on the same machine, over a unix socket and shared memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.errors import ChannelError
from kvstore.interface import Asked
from kvstore.loading import OnDone, Ticket
from kvstore.namespace import Namespace
from kvstore.remote import wire
from kvstore.remote.channel import Message
from kvstore.remote.link import Link
from kvstore.remote.pending import Pending
from kvstore.remote.reconnecting import Reconnecting
from kvstore.remote.transport import Found, Offer
from kvstore.remote.wire import UNKNOWN, Kind

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SocketAddress:
    """A server's socket, the token for it, and how much memory loaded blocks may take here at once."""

    path: Path
    token: str | None = None
    memory_bytes: int = 256 << 20


class StagedMemory:
    """Memory for one block in the staging memory, the caller's until ``commit`` or ``abort``."""

    __slots__ = ("_link", "_number", "_pending", "_start", "view")

    def __init__(self, link: Link, number: int, start: int, nbytes: int, pending: Pending) -> None:
        self.view = link.staging.memory[start : start + nbytes]
        self._link = link
        self._number = number
        self._start = start
        self._pending = pending

    def commit(self) -> None:
        """Hand the block over: the server copies it behind, and this client finds it from now on."""
        self.view = memoryview(b"")
        self._pending.commit(self._link, self._number, self._start)

    def abort(self) -> None:
        """Give the memory back; nothing was stored."""
        self.view = memoryview(b"")
        with suppress(ChannelError):
            self._link.say(Kind.ABORT, wire.NUMBER.pack(self._number))
        self._link.staging.give_back(self._start)


class SocketTransport:
    """See ``Transport``. ``held_by`` of what it found is the connection that holds the lease."""

    def __init__(self, address: SocketAddress, clock: Clock) -> None:
        """Connect, if a server answers. Raises ``AccessError`` or ``ConfigError`` if it sends us away."""
        self._address = address
        self._arena = Arena(address.memory_bytes, spare_bytes=address.memory_bytes // 2)
        self._pending = Pending(self._arena)
        self._described: dict[bytes, Namespace] = {}
        self._server = Reconnecting(self._connect, clock)
        self._server.look()

    @property
    def tiers(self) -> tuple[str, ...]:
        link = self._server.live()
        return () if link is None else link.tiers

    @property
    def asks_media(self) -> bool:
        link = self._server.live()
        return link is not None and bool(link.facts["asks_media"])

    @property
    def why_lost(self) -> str:
        return self._server.why_lost

    def describe(self, namespace: Namespace) -> Namespace | None:
        self._described[namespace.digest] = namespace
        return self._try(lambda link: _describe(link, namespace))

    def look_up(self, keys: Sequence[bytes], lease_s: float | None, ttl_s: float | None) -> Found | None:
        def look_up(link: Link) -> Found:
            asked = wire.ASKED.pack(_or_nan(lease_s), _or_nan(ttl_s))
            answer = link.call(Kind.LOOKUP, asked, b"".join(keys))
            lease, left_s, num = wire.unpack(wire.HIT_HEAD, answer.body)
            return Found(lease, left_s, wire.unpack_places(answer.body[wire.HIT_HEAD.size :])[:num], link)

        return self._try(look_up)

    def release(self, found: Found) -> None:
        if found.lease and isinstance(found.held_by, Link):
            with suppress(ChannelError):
                found.held_by.say(Kind.RELEASE, wire.NUMBER.pack(found.lease))

    def load(self, found: Found, index: int, timeout_s: float, on_done: OnDone | None) -> Ticket:
        link, place = found.held_by, found.places[index]
        if not isinstance(link, Link):
            return Ticket.of(None)
        if place.slab:
            return Ticket.of(self._pending.copy(link, place))
        return self._pending.load(link, found.lease, index, timeout_s, on_done)

    def load_into(self, found: Found, index: int, out: memoryview, timeout_s: float) -> bool:
        link, place = found.held_by, found.places[index]
        if isinstance(link, Link) and place.slab:
            with suppress(ChannelError):
                return link.copy(place, out)
            return False
        return self.load(found, index, timeout_s, None).read_into(out, timeout_s)

    def reserve(self, offer: Offer, wait_s: float) -> StagedMemory | None:
        link = self._server.live()
        start = link.staging.take(offer.nbytes, wait_s) if link is not None else None
        if link is None or start is None:
            return None
        known_tokens, known_first = (
            UNKNOWN if n is None else n for n in (offer.num_tokens, offer.first_token)
        )
        offered = wire.OFFERED.pack(
            offer.nbytes, known_tokens, known_first, _or_nan(offer.ttl_s), len(offer.parent)
        )
        number = 0
        with suppress(ChannelError):
            answer = link.call(Kind.RESERVE, offered, offer.namespace, offer.key, offer.parent)
            (number,) = wire.unpack(wire.NUMBER, answer.body)
        if number:
            return StagedMemory(link, number, start, offer.nbytes, self._pending)
        link.staging.give_back(start)
        return None

    def inquire(
        self, keys: Sequence[bytes], timeout_s: float, block_bytes: int | None, on_done: OnDone | None
    ) -> Asked | None:
        link = self._server.live()
        nbytes = UNKNOWN if block_bytes is None else block_bytes
        return None if link is None else self._pending.inquire(link, keys, timeout_s, nbytes, on_done)

    def ask(self, method: str, timeout_s: float = 0.0, **said: object) -> Any:
        if timeout_s:
            return self._try(lambda link: link.call_long(method, timeout_s, **said))
        return self._try(lambda link: link.call_method(method, **said))

    def wait_until_sent(self, timeout_s: float) -> bool:
        link = self._server.current
        return link is not None and link.staging.wait_until_unused(timeout_s)

    def check(self) -> None:
        self._arena.check()
        if (link := self._server.current) is not None:
            link.staging.check()

    def close(self) -> None:
        self._server.close()
        if (link := self._server.current) is not None:
            link.lose()
        self._arena.close()

    def _try(self, ask: Callable[[Link], _T]) -> _T | None:
        link = self._server.live()
        if link is None:
            return None
        try:
            return ask(link)
        except ChannelError:
            return None

    def _connect(self) -> Link:
        link = Link(self._address.path, self._address.token, self._pending.hear, self._lost)
        for namespace in list(self._described.values()):
            _describe(link, namespace)
        return link

    def _lost(self, link: Link) -> None:
        if self._server.current is link:
            self._server.lose("the server has ended the connection")
        self._pending.lost(link)


def _describe(link: Link, namespace: Namespace) -> Namespace:
    answer: Message = link.call(Kind.NAMESPACE, namespace.manifest().encode())
    try:
        return Namespace.from_manifest(bytes(answer.body).decode())
    except ValueError as error:
        raise ChannelError(f"the server's namespace cannot be read: {error}") from error


def _or_nan(seconds: float | None) -> float:
    return math.nan if seconds is None else seconds
