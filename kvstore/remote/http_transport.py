"""Speaks with a store's server on another machine, over HTTP."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Condition
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlencode

from kvstore.arena import Arena, Slot
from kvstore.clock import Clock
from kvstore.errors import ChannelError
from kvstore.frame import checksum
from kvstore.interface import Asked
from kvstore.loading import Load, OnDone, SharedBytes, Ticket
from kvstore.namespace import Namespace
from kvstore.remote.http_calls import HttpCalls
from kvstore.remote.pending import Inquired
from kvstore.remote.reconnecting import Reconnecting
from kvstore.remote.transport import Found, Offer
from kvstore.remote.wire import NOWHERE, Place

CHECKSUM_HEADER = "X-Prefixd-Checksum"
TIER_HEADER = "X-Prefixd-Tier"
_READ_BY_GET = frozenset({"health", "statistics", "known_namespaces", "pins"})
_NUM_THREADS = 4
_LONGEST_S = 3600.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """A server's address, the token for it, and how much memory blocks on their way may take here."""

    url: SplitResult
    token: str | None = None
    memory_bytes: int = 256 << 20


class SentMemory:
    """Memory for one block, the caller's until ``commit`` or ``abort``."""

    __slots__ = ("_number", "_slot", "_transport", "view")

    def __init__(self, transport: HttpTransport, number: int, slot: Slot) -> None:
        self.view = slot.view
        self._transport = transport
        self._number = number
        self._slot = slot

    def commit(self) -> None:
        """Hand the block over: it is sent behind, and this client finds it from now on."""
        self.view = memoryview(b"")
        self._transport.send(self._number, self._slot)

    def abort(self) -> None:
        """Give the memory back; nothing was stored."""
        self.view = memoryview(b"")
        self._transport.give_up(self._number, self._slot)


class HttpTransport:
    """See ``Transport``. Bytes are verified as they arrive; a few of its own threads wait for them."""

    def __init__(self, address: HttpAddress, clock: Clock) -> None:
        """Ask for the server's tiers, if it answers. Raises ``AccessError`` if it sends us away."""
        self._calls = HttpCalls(address.url, address.token)
        self._clock = clock
        self._arena = Arena(address.memory_bytes, spare_bytes=address.memory_bytes // 2)
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="http-store")
        self._described: dict[bytes, Namespace] = {}
        self._num_sending = 0
        self._num_leaving = 0
        self._sent = Condition()
        self._server = Reconnecting(self._connect, clock)
        self._server.look()

    @property
    def tiers(self) -> tuple[str, ...]:
        facts = self._server.live()
        return () if facts is None else tuple(facts["tiers"])

    @property
    def asks_media(self) -> bool:
        facts = self._server.live()
        return facts is not None and bool(facts["asks_media"])

    @property
    def why_lost(self) -> str:
        return self._server.why_lost

    def describe(self, namespace: Namespace) -> Namespace | None:
        self._described[namespace.digest] = namespace
        return self._try(lambda: self._describe(namespace))

    def look_up(self, keys: Sequence[bytes], lease_s: float | None, ttl_s: float | None) -> Found | None:
        with self._sent:  # a client finds what it has stored itself
            self._sent.wait_for(lambda: not self._num_sending)
        said = {"keys": [key.hex() for key in keys], "lease_s": lease_s, "ttl_s": ttl_s}

        def look_up() -> Found | None:
            told = self._calls.ask("POST", "/store/lookups", said)
            if told is None:
                return None
            numbers = {name: number for number, name in enumerate(self.tiers)}
            places = [
                NOWHERE if tier not in numbers else Place(numbers[tier], 0, 0, int(nbytes), 0, 0)
                for tier, nbytes in zip(told["tiers"], told["nbytes"], strict=True)
            ]
            return Found(int(told["lease"]), float(told["lease_s"]), places)

        return self._try(look_up)

    def release(self, found: Found) -> None:
        if found.lease and not self._server.is_closed:
            self._say_behind(f"/store/lookups/{found.lease}")

    def load(self, found: Found, index: int, timeout_s: float, on_done: OnDone | None) -> Ticket:
        load = Load()
        ticket = Ticket.on(load, on_done, None)
        if not self._behind(lambda: self._load(load, found, index, min(timeout_s, _LONGEST_S))):
            load.finish(None)
        return ticket

    def load_into(self, found: Found, index: int, out: memoryview, timeout_s: float) -> bool:
        return self._receive(found.lease, index, out, timeout_s) is not None

    def reserve(self, offer: Offer, wait_s: float) -> SentMemory | None:
        slot = self._slot(offer.nbytes, wait_s) if self._server.live() else None
        if slot is None:
            return None
        said = {
            "namespace": offer.namespace.hex(), "key": offer.key.hex(), "parent": offer.parent.hex() or None,
            "nbytes": offer.nbytes, "num_tokens": offer.num_tokens, "first_token": offer.first_token,
            "ttl_s": offer.ttl_s,
        }  # fmt: skip

        def reserve() -> int:
            told = self._calls.ask("POST", "/store/reservations", said)
            return 0 if told is None else int(told["reservation"])

        if number := self._try(reserve):
            return SentMemory(self, number, slot)
        slot.free()
        return None

    def inquire(
        self, keys: Sequence[bytes], timeout_s: float, block_bytes: int | None, on_done: OnDone | None
    ) -> Asked | None:
        inquiry = Inquired(on_done)
        said = {"keys": [key.hex() for key in keys], "timeout_s": timeout_s, "block_bytes": block_bytes}

        def ask() -> None:
            try:
                self._try(lambda: self._calls.ask("POST", "/store/inquiries", said, timeout_s))
            finally:
                inquiry.end()

        if not self._behind(ask):
            inquiry.end()
        return inquiry

    def ask(self, method: str, timeout_s: float = 0.0, **said: object) -> Any:
        if timeout_s:
            said["timeout_s"] = timeout_s
        is_read = method in _READ_BY_GET
        verb, body = ("GET", None) if is_read else ("POST", said)
        path = f"/store/{method}?{urlencode(said)}" if is_read and said else f"/store/{method}"
        if not is_read:
            self.wait_until_sent(math.inf)  # what was released before is in use no more

        def ask() -> Any:
            told = self._calls.ask(verb, path, body, timeout_s)
            return None if told is None else told["value"]

        return self._try(ask)

    def wait_until_sent(self, timeout_s: float) -> bool:
        with self._sent:
            left_s = None if math.isinf(timeout_s) else timeout_s
            return self._sent.wait_for(lambda: not self._num_sending + self._num_leaving, left_s)

    def check(self) -> None:
        self._arena.check()

    def close(self) -> None:
        self._server.close()
        self._calls.close()
        self._threads.shutdown(wait=False)  # what waits in line fails at once

    def send(self, number: int, slot: Slot) -> None:
        """Send a reserved block's bytes, behind."""

        def send() -> None:
            try:
                self._try(lambda: self._calls.send(f"/store/reservations/{number}", slot.view))
            finally:
                slot.free()
                with self._sent:
                    self._num_sending -= 1
                    self._sent.notify_all()

        with self._sent:
            self._num_sending += 1
        if not self._behind(send):
            send()

    def give_up(self, number: int, slot: Slot) -> None:
        """Have the server forget a reservation, behind."""
        slot.free()
        self._say_behind(f"/store/reservations/{number}")

    def _say_behind(self, path: str) -> None:
        """Have the server forget something, behind."""

        def say() -> None:
            try:
                self._try(lambda: self._calls.ask("DELETE", path))
            finally:
                with self._sent:
                    self._num_leaving -= 1
                    self._sent.notify_all()

        with self._sent:
            self._num_leaving += 1
        if not self._behind(say):
            say()

    def _slot(self, nbytes: int, wait_s: float) -> Slot | None:
        slot = self._arena.allocate(nbytes)
        while slot is None and wait_s > 0 and self._num_sending:
            began_s = self._clock.monotonic_s()
            with self._sent:
                self._sent.wait(wait_s)
            wait_s -= self._clock.monotonic_s() - began_s
            slot = self._arena.allocate(nbytes)
        return slot

    def _load(self, load: Load, found: Found, index: int, timeout_s: float) -> None:
        """Bring a block here, and tell whoever waits of the end, whatever happens."""
        slot, tier = None, None
        try:
            slot = self._arena.allocate(found.places[index].nbytes) if load.is_wanted() else None
            if slot is not None:
                tier = self._receive(found.lease, index, slot.view, timeout_s)
        finally:
            if slot is not None and tier is not None:
                shared = SharedBytes(slot.view, slot.free, tier=tier, slot=slot)
                load.finish(lambda _num_readers: shared)
            else:
                if slot is not None:
                    slot.free()
                load.finish(None)

    def _receive(self, lease: int, index: int, out: memoryview, timeout_s: float) -> str | None:
        """Receive a leased block and verify it; returns its tier, ``None``: it is not there."""
        path = f"/store/lookups/{lease}/blocks/{index}?timeout_s={max(timeout_s, 0.001):.3f}"
        headers = self._try(lambda: self._calls.receive(path, out, timeout_s))
        if headers is None or headers.get(CHECKSUM_HEADER) != f"{checksum(out):016x}":
            return None
        return headers.get(TIER_HEADER, "")

    def _behind(self, call: Callable[[], object]) -> bool:
        """Do something on a thread of our own; ``False``: we are closed."""
        try:
            self._threads.submit(call)
        except RuntimeError:
            return False
        return True

    def _describe(self, namespace: Namespace) -> Namespace:
        told = self._calls.ask("POST", "/store/namespaces", {"manifest": namespace.manifest()})
        try:
            return Namespace.from_manifest(told["value"])
        except ValueError as error:
            raise ChannelError(f"the server's namespace cannot be read: {error}") from error

    def _try(self, call: Callable[[], _T]) -> _T | None:
        if self._server.live() is None:
            return None
        try:
            return call()
        except ChannelError as error:
            self._server.lose(error.reason)
        except (KeyError, TypeError, ValueError):
            self._server.lose("the server's answer makes no sense")
        return None

    def _connect(self) -> dict[str, Any]:
        facts = self._calls.ask("GET", "/store")
        if not isinstance(facts, dict) or not facts.keys() >= {"tiers", "asks_media"}:
            raise ChannelError("what answers there is no store")
        for namespace in list(self._described.values()):
            self._describe(namespace)
        return facts
