"""One client of a store's server: what it holds of the store, all given back when it goes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from queue import SimpleQueue
from threading import Condition, Lock, Thread
from typing import NamedTuple

from kvstore.errors import ChannelError, PrefixdError, RequestError
from kvstore.frame import copy_and_checksum
from kvstore.leases import Hit
from kvstore.namespace import Namespace
from kvstore.remote.channel import Channel
from kvstore.remote.client_loads import ClientLoads
from kvstore.remote.patience import patience_s
from kvstore.remote.places import look_up_mappable
from kvstore.remote.tenancy import Owners, Role, Tenant
from kvstore.remote.told_pool import ToldPool
from kvstore.remote.transport import Offer
from kvstore.remote.wire import ENDED, NOWHERE, NUMBER, Kind, Place, pack_places
from kvstore.store import TieredStore
from kvstore.storing import Reservation

_log = logging.getLogger(__name__)

_MOST_LEASES = 4096
_LONGEST_LEASE_S = 3600.0
_MOST_INQUIRIES = 64
_MOST_JOBS = 16_384
_MOST_NAMESPACES = 1024
_RESERVED_S = 60.0
_NO_BYTES = memoryview(b"")


class Reserved(NamedTuple):
    """Memory that waits for a client's block, at most until ``ends_s``."""

    reservation: Reservation
    ends_s: float


class Session:
    """What one client may do and holds. Thread-safe; its worker copies, and tells what has ended.

    ``staging`` is memory that the client writes to at any time: it is copied, and only the copy counts.
    ``most_reserved_bytes`` bounds what it may have reserved. ``on_ended`` is called when all was given back,
    because the client is gone or the worker was broken off by a fault.
    """

    def __init__(
        self,
        store: TieredStore,
        tenant: Tenant,
        owners: Owners,
        most_reserved_bytes: int,
        staging: memoryview = _NO_BYTES,
    ) -> None:
        self._owners = owners
        self.tenant = tenant
        self.store = store
        self._most_reserved_bytes = most_reserved_bytes
        self._staging = staging
        self._namespaces: dict[bytes, Namespace] = {}
        self._leases: dict[int, Hit] = {}
        self._reservations: dict[int, Reserved] = {}
        self._numbers = count(1)
        self._lock = Lock()
        self._news: Channel | None = None
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._num_commits = 0
        self._num_inquiries = 0
        self._committed = Condition(self._lock)
        self._is_open = True
        self.pool = ToldPool(store, self._namespaces, self.own)
        self.loads = ClientLoads(store, self._jobs.put, self._tell_loaded)
        self.on_ended: Callable[[], None] = _nothing
        Thread(target=self._work, name="client-copies", daemon=True).start()

    @property
    def is_open(self) -> bool:
        """Whether it still answers for its client."""
        return self._is_open

    def listen(self, news: Channel) -> None:
        """Tell what ends over this connection from now on."""
        self._news = news

    def register(self, namespace: Namespace) -> Namespace:
        """Return the tenant's own namespace for what a client describes; its blocks may be named then.

        Raises ``RequestError`` when a client describes too many.
        """
        own = self.tenant.own(namespace)
        if len(self._namespaces) >= _MOST_NAMESPACES and own.digest not in self._namespaces:
            raise RequestError("namespace", f"a client may use {_MOST_NAMESPACES} of them")
        self._owners.note(self.tenant, own)
        self._namespaces[own.digest] = own
        if self.tenant.role < Role.DATA:
            self.store.meet(own)
        else:
            self.store.register_namespace(own)
        return own

    def may_know(self, namespace: Namespace) -> bool:
        """Say whether a namespace is the client's own."""
        return not self.tenant.name or namespace.digest in self._namespaces

    def own(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return the keys in the store for those that the client says."""
        return self.tenant.own_keys(keys)

    def look_up(self, keys: Sequence[bytes], lease_s: float | None, ttl_s: float | None) -> tuple[int, Hit]:
        """Look blocks up; returns the lease's number (0: nothing is leased) and the hit."""
        self._wait_for_commits()
        asked_s = None if lease_s is None else min(lease_s, _LONGEST_LEASE_S)
        if self.tenant.name:
            hit = look_up_mappable(self.store, self.own(keys), asked_s, ttl_s, self.tenant.name.encode())
        else:
            hit = self.store.lookup(keys, asked_s, ttl_s)
        if not hit.records:
            return 0, hit
        with self._lock:
            if len(self._leases) >= _MOST_LEASES:
                self._leases = {number: held for number, held in self._leases.items() if held.is_leased}
            if len(self._leases) >= _MOST_LEASES or not self._is_open:
                hit.release()
                return 0, hit
            number = next(self._numbers)
            self._leases[number] = hit
        return number, hit

    def lease(self, number: int) -> Hit | None:
        """Return what is held under a number; ``None``: nothing is."""
        return self._leases.get(number)

    def release(self, lease: int) -> None:
        """Give a lease back; nothing happens when it is over."""
        with self._lock:
            hit = self._leases.pop(lease, None)
        if hit is not None:
            self.loads.release(hit)

    def load(self, lease: int, index: int, number: int, timeout_s: float) -> None:
        """Begin to load a leased block; its end is told under ``number``, once."""
        self._refuse_flood()
        self.loads.begin(self._leases.get(lease), index, number, timeout_s)

    def let_go(self, number: int) -> None:
        """Give a load up, or its bytes back."""
        self.loads.let_go(number)

    def inquire(self, number: int, keys: Sequence[bytes], timeout_s: float, block_bytes: int | None) -> None:
        """Ask the media that must be asked; the end is told under ``number``, once."""
        self._refuse_flood()
        done = partial(self._jobs.put, partial(self._end_inquiry, number))
        with self._lock:
            self._num_inquiries += 1
            is_refused = self._num_inquiries > _MOST_INQUIRIES or not self._is_open or not keys
        inquiry = None
        if not is_refused:
            with suppress(PrefixdError):
                deadline_s = self.store.now_s() + patience_s(timeout_s)
                inquiry = self.store.inquire(self.own(keys), deadline_s, done, block_bytes)
        if inquiry is None or inquiry.done():
            done()

    def reserve(self, offer: Offer) -> int:
        """Offer a block; returns the reservation's number, 0: it is not wanted."""
        namespace = self._namespaces.get(offer.namespace)
        if (
            namespace is None
            or self.tenant.role < Role.DATA
            or not 0 < offer.nbytes <= self._most_reserved_bytes
        ):
            return 0
        key, parent = self.own([offer.key, offer.parent])
        reservation = self.store.reserve(
            namespace,
            key,
            parent,
            offer.nbytes,
            num_tokens=offer.num_tokens,
            first_token=offer.first_token,
            ttl_s=offer.ttl_s,
        )
        if reservation is None:
            return 0
        with self._lock:
            reserved_bytes = sum(len(held.reservation.view) for held in self._reservations.values())
            if reserved_bytes + offer.nbytes <= self._most_reserved_bytes and self._is_open:
                number = next(self._numbers)
                self._reservations[number] = Reserved(reservation, self.store.now_s() + _RESERVED_S)
                return number
        reservation.abort()
        return 0

    def commit(self, number: int, offset: int) -> None:
        """Copy a reserved block's bytes from the staging memory and publish it, behind."""
        self._refuse_flood()
        with self._lock:
            self._num_commits += 1
        self._jobs.put(partial(self._commit, number, offset))

    def abort(self, number: int) -> None:
        """Give a reservation back."""
        reservation = self.take(number)
        if reservation is not None:
            reservation.abort()

    def take(self, number: int) -> Reservation | None:
        """Return a reservation, the caller's to commit or abort; ``None``: there is none."""
        with self._lock:
            reserved = self._reservations.pop(number, None)
        return None if reserved is None else reserved.reservation

    def sweep(self, now_s: float) -> None:
        """Give back what the client has left lying about for too long."""
        with self._lock:
            overdue = [number for number, reserved in self._reservations.items() if reserved.ends_s < now_s]
        for number in overdue:
            self.abort(number)
        self.loads.sweep(now_s)

    def close(self) -> None:
        """Give everything back: the client is gone. Idempotent."""
        with self._lock:
            self._is_open = False
        self._jobs.put(None)

    def _refuse_flood(self) -> None:
        """Raise ``ChannelError`` for a client that asks faster than it listens."""
        if self._jobs.qsize() >= _MOST_JOBS:
            raise ChannelError(f"more than {_MOST_JOBS} messages wait for their client to listen")

    def _work(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                job()
        except Exception:  # noqa: BLE001  whatever it is, the client must hear of it and can connect again
            _log.exception("a client's session is broken off")
        finally:
            self._give_all_back()
            self.on_ended()

    def _give_all_back(self) -> None:
        with self._lock:
            self._is_open = False
            self._committed.notify_all()
            leases, reservations = list(self._leases), list(self._reservations)
        for lease in leases:
            self.release(lease)
        self.loads.end()
        self.pool.close()
        self._staging = _NO_BYTES  # not when this object happens to be collected
        for number in reservations:
            self.abort(number)

    def _end_inquiry(self, number: int) -> None:
        with self._lock:
            self._num_inquiries -= 1
        self._tell(Kind.INQUIRED, NUMBER.pack(number))

    def _commit(self, number: int, offset: int) -> None:
        reservation = self.take(number)
        if reservation is not None:
            staged = self._staging[offset : offset + len(reservation.view)]
            if len(staged) == len(reservation.view):
                reservation.commit(copy_and_checksum(staged, reservation.view))
            else:
                reservation.abort()
        with self._committed:
            self._num_commits -= 1
            self._committed.notify_all()
        self._tell(Kind.STAGED, NUMBER.pack(number))

    def _wait_for_commits(self) -> None:
        """Let a client find what it has stored itself."""
        with self._committed:
            self._committed.wait_for(lambda: not self._num_commits or not self._is_open)

    def _tell_loaded(self, number: int, place: Place) -> None:
        self._tell(Kind.LOADED, ENDED.pack(number, place != NOWHERE), pack_places([place]))

    def _tell(self, kind: Kind, *parts: bytes) -> None:
        news = self._news
        if news is None:
            return
        try:
            news.send(kind, *parts)
        except ChannelError:
            self._news = None


def _nothing() -> None:
    """Nobody listens."""
