"""What a client may ask of a store's server, message by message."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvstore.arena import Arena
from kvstore.errors import ChannelError
from kvstore.namespace import Namespace
from kvstore.remote import pinning, wire
from kvstore.remote.channel import Channel, Message
from kvstore.remote.places import places_of
from kvstore.remote.reports import health_report, statistics_report
from kvstore.remote.session import Session
from kvstore.remote.tenancy import Role
from kvstore.remote.transport import Offer
from kvstore.remote.wire import Kind
from kvstore.store import TieredStore

_LONGEST_WAIT_S = 3600.0


class Calls:
    """Answers the messages of one connection. May block where the store does."""

    def __init__(self, session: Session, store: TieredStore, arena: Arena, channel: Channel) -> None:
        self._session = session
        self._store = store
        self._arena = arena
        self._channel = channel
        self._answers: Mapping[int, Callable[[memoryview], None]] = {
            Kind.NAMESPACE: self._namespace,
            Kind.LOOKUP: self._look_up,
            Kind.RELEASE: self._release,
            Kind.LOAD: self._load,
            Kind.LET_GO: self._let_go,
            Kind.INQUIRE: self._inquire,
            Kind.RESERVE: self._reserve,
            Kind.COMMIT: self._commit,
            Kind.ABORT: self._abort,
            Kind.MAP: self._map,
            Kind.CALL: self._call,
        }
        self._methods: Mapping[str, Callable[[dict[str, Any]], object]] = {
            "peek": lambda said: self._store.peek(self._keys(said)),
            "why_absent": self._why_absent,
            "known_namespaces": self._known_namespaces,
            "evict": self._evict,
            "clear": self._clear,
            "quarantine": self._quarantine,
            "pin": self._pin,
            "unpin": lambda said: pinning.unpin(self._session, self._named(said), _tiers(said)),
            "pins": lambda said: pinning.pins(self._session, _whole(said, "limit")),
            "pool": self._session.pool.exchange,
            "flush": lambda said: self._store.flush(_seconds(said)),
            "health": lambda _said: health_report(self._store.health()),
            "statistics": lambda _said: statistics_report(self._store.statistics(), session.tenant),
        }

    def answer(self, message: Message) -> None:
        """Do what a message asks. Raises an error of the tree for what cannot be, which ends nothing."""
        answer = self._answers.get(message.kind)
        if answer is None:
            raise ChannelError(f"a message of kind {message.kind} is not known")
        answer(message.body)

    def _namespace(self, body: memoryview) -> None:
        try:
            namespace = Namespace.from_manifest(bytes(body).decode())
        except ValueError as error:
            raise ChannelError(f"no namespace: {error}") from error
        own = self._session.register(namespace)
        self._channel.send(Kind.ANSWER, own.manifest().encode())

    def _look_up(self, body: memoryview) -> None:
        lease_s, ttl_s = wire.unpack(wire.ASKED, body)
        keys = wire.unpack_keys(body[wire.ASKED.size :])
        number, hit = self._session.look_up(keys, _given(lease_s), _given(ttl_s))
        left_s = hit.deadline_s - self._store.now_s()
        places = places_of(self._store, hit)
        head = wire.HIT_HEAD.pack(number, left_s, len(places))
        self._channel.send(Kind.HIT, head, wire.pack_places(places))

    def _release(self, body: memoryview) -> None:
        self._session.release(*wire.unpack(wire.NUMBER, body))

    def _load(self, body: memoryview) -> None:
        self._session.load(*wire.unpack(wire.LOAD_ORDER, body))

    def _let_go(self, body: memoryview) -> None:
        self._session.let_go(*wire.unpack(wire.NUMBER, body))

    def _inquire(self, body: memoryview) -> None:
        number, timeout_s, block_bytes = wire.unpack(wire.INQUIRY_ORDER, body)
        keys = wire.unpack_keys(body[wire.INQUIRY_ORDER.size :])
        self._session.inquire(number, keys, timeout_s, None if block_bytes < 0 else block_bytes)

    def _reserve(self, body: memoryview) -> None:
        nbytes, num_tokens, first_token, ttl_s, parent_bytes = wire.unpack(wire.OFFERED, body)
        names = bytes(body[wire.OFFERED.size :])
        if len(names) != 2 * wire.KEY_BYTES + parent_bytes or parent_bytes not in {0, wire.KEY_BYTES}:
            raise ChannelError("an offer names a namespace, a key and a parent of 16 bytes each")
        namespace, key, parent = names[:16], names[16:32], names[32:]
        known_tokens, known_first = (None if n < 0 else n for n in (num_tokens, first_token))
        offer = Offer(namespace, key, parent, nbytes, known_tokens, known_first, _given(ttl_s))
        self._channel.send(Kind.RESERVED, wire.NUMBER.pack(self._session.reserve(offer)))

    def _commit(self, body: memoryview) -> None:
        self._session.commit(*wire.unpack(wire.COMMITMENT, body))

    def _abort(self, body: memoryview) -> None:
        self._session.abort(*wire.unpack(wire.NUMBER, body))

    def _map(self, body: memoryview) -> None:
        if not body or len(body) % wire.SLAB_NUMBER.size:
            raise ChannelError("slabs are named by numbers")
        wanted, *mapped = (number for (number,) in wire.SLAB_NUMBER.iter_unpack(body))
        gone = b"".join(wire.SLAB_NUMBER.pack(number) for number in mapped if not self._arena.slab(number))
        slab = self._arena.slab(wanted)
        if slab is None or slab.owner != self._session.tenant.name.encode() or slab.memory.descriptor < 0:
            self._channel.send(Kind.SLAB, wire.SLAB_HEAD.pack(0, 0, 0), gone)
            return
        head = wire.SLAB_HEAD.pack(slab.stride_bytes, slab.num_slots, 1)
        self._channel.send(Kind.SLAB, head, gone, descriptor=slab.memory.descriptor)

    def _call(self, body: memoryview) -> None:
        said = wire.unpack_json(body)
        method = self._methods.get(str(said.get("method")))
        if method is None:
            raise ChannelError("no such method")
        self._channel.send(Kind.ANSWER, wire.pack_json({"value": method(said)}))

    def _why_absent(self, said: dict[str, Any]) -> object:
        absences = [self._store.why_absent(key) for key in self._keys(said)]
        return [(absence.cause.value, absence.tier, absence.at_ms) for absence in absences]

    def _known_namespaces(self, said: dict[str, Any]) -> object:
        known = self._store.known_namespaces(_seconds(said))
        return [namespace.manifest() for namespace in known if self._session.may_know(namespace)]

    def _evict(self, said: dict[str, Any]) -> object:
        self._session.tenant.require(Role.DATA)
        return self._store.evict(self._keys(said))

    def _clear(self, said: dict[str, Any]) -> object:
        self._session.tenant.require_operator()
        tier = said.get("tier")
        return self._store.clear(tier if isinstance(tier, str) else None)

    def _quarantine(self, said: dict[str, Any]) -> object:
        self._session.tenant.require(Role.DATA)
        for key in self._keys(said):
            self._store.quarantine(key)
        return None

    def _pin(self, said: dict[str, Any]) -> object:
        keys, tiers = self._named(said), _tiers(said)
        return pinning.pin(self._session, keys, _number(said, "for_s"), _number(said, "until_s"), tiers)

    def _keys(self, said: dict[str, Any]) -> Sequence[bytes]:
        return self._session.own(self._named(said))

    def _named(self, said: dict[str, Any]) -> Sequence[bytes]:
        named = said.get("keys")
        if not isinstance(named, list) or len(named) > wire.MOST_KEYS:
            raise ChannelError(f"keys are a list of up to {wire.MOST_KEYS}")
        try:
            keys = [bytes.fromhex(key) for key in named]
        except (TypeError, ValueError) as error:
            raise ChannelError("a key is a hexadecimal string") from error
        if any(len(key) != wire.KEY_BYTES for key in keys):
            raise ChannelError(f"a key has {wire.KEY_BYTES} bytes")
        return keys


def _given(seconds: float) -> float | None:
    return None if math.isnan(seconds) else seconds


def _seconds(said: dict[str, Any]) -> float:
    timeout_s = said.get("timeout_s")
    if not isinstance(timeout_s, int | float) or not 0 <= timeout_s <= _LONGEST_WAIT_S:
        raise ChannelError(f"timeout_s must be from 0 to {_LONGEST_WAIT_S:.0f}")
    return float(timeout_s)


def _number(said: dict[str, Any], name: str) -> float | None:
    value = said.get(name)
    if value is not None and not isinstance(value, int | float):
        raise ChannelError(f"{name} is no number")
    return value


def _whole(said: dict[str, Any], name: str) -> int:
    value = said.get(name)
    if not isinstance(value, int):
        raise ChannelError(f"{name} is no whole number")
    return value


def _tiers(said: dict[str, Any]) -> Sequence[str] | None:
    tiers = said.get("tiers")
    if tiers is not None and not (isinstance(tiers, list) and all(isinstance(tier, str) for tier in tiers)):
        raise ChannelError("tiers are a list of names")
    return tiers
