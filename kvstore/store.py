"""The facade: look a prefix up, load its blocks, store new ones; every fault ends here as a miss."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kvstore.absences import Absences
from kvstore.admin.administration import Administration
from kvstore.admin.index import OperatedIndex
from kvstore.admin.placement import OperatedPlacement
from kvstore.arena import Arena, OwnerOf, Slot
from kvstore.audit import Audit
from kvstore.clock import Clock
from kvstore.defaults import Defaults, checked_ttl_ms
from kvstore.device_side import DeviceSide
from kvstore.errors import LeaseExpiredError, StoreClosedError
from kvstore.flights import Flights
from kvstore.foresight import Foresight
from kvstore.frame import copy
from kvstore.inquiry import Inquiries, Inquiry
from kvstore.insight import Insight
from kvstore.leases import Hit, LeaseTable
from kvstore.ledger import Ledger
from kvstore.loading import OnDone, Ticket
from kvstore.manifests import Manifests
from kvstore.memory_room import MemoryRoom
from kvstore.namespace import Namespace
from kvstore.pins import TierPins
from kvstore.pools import Pools
from kvstore.quotas import Quotas
from kvstore.record import Record
from kvstore.recovery import Recovery
from kvstore.residents import fastest
from kvstore.retrieval import Retrieval
from kvstore.seams import Codec, OnTransfer
from kvstore.shared_tier import make_tier
from kvstore.store_config import DeviceTier, StoreConfig, refuse_odd_tiers
from kvstore.stored_copies import StoredCopies
from kvstore.storing import Reservation, Storing
from kvstore.sweeper import Sweeper
from kvstore.tenants import Tenants
from kvstore.tier import DEVICE, TierSpec
from kvstore.upkeep import Upkeep

__all__ = ["DeviceTier", "StoreConfig", "TieredStore"]


def _nobodys(_namespace: bytes) -> bytes:
    return b""


class TieredStore(Upkeep, DeviceSide, Insight):
    """Blocks in tiers, from the fastest to the slowest. Thread-safe.

    ``arena`` provides the memory in which blocks are filled and loads land; a tier whose backend
    can lend (``Lending``) keeps its blocks there as well, and must come first. Methods block on
    I/O only where they say so. The store owns the backends and closes them. ``codecs`` are forms
    that blocks on the media may have beside those that the tiers write; ``on_transfer`` hears of
    each block that was read from a medium; ``owner_of`` says whose slabs of ``arena`` a block lies in.
    ``foresight`` takes hints, ``copies`` looks at one tier's copy of a block, ``admin`` is for its operator,
    ``pools`` counts what engines in other processes have.
    """

    def __init__(
        self,
        tiers: Sequence[TierSpec],
        arena: Arena,
        config: StoreConfig | None = None,
        clock: Clock | None = None,
        device: DeviceTier | None = None,
        *,
        codecs: Sequence[Codec] = (),
        on_transfer: OnTransfer | None = None,
        owner_of: OwnerOf = _nobodys,
    ) -> None:
        refuse_odd_tiers(tiers)
        self._specs = tuple(tiers)
        self.config = config or StoreConfig()
        self._clock = clock or Clock()
        self._device = device or DeviceTier()
        self._arena = arena
        known = [*codecs, *(spec.codec for spec in tiers if spec.codec)]
        self._tiers = tuple(
            make_tier(spec, bit, self._clock, known) for bit, spec in enumerate(tiers, start=1)
        )
        self._names = (DEVICE, *(tier.name for tier in self._tiers))
        tenants, charges = Tenants(), dict[str, int]()
        ledgers = [
            Ledger(
                spec.config.budget_bytes,
                spec.policy,
                Quotas(spec.config.name, spec.make_policy, tenants),
                TierPins(charges),
            )
            for spec in tiers
        ]
        self._index = OperatedIndex(
            [None, *ledgers],
            Absences(self._clock.wall_ms),
            self._clock.wall_ms,
            tenants,
            Defaults(self.config.ttls_ms(self._names)),
        )
        self._leases = LeaseTable()
        self._placement = OperatedPlacement(
            self._tiers, self._index, self._clock, finds_device=not self._device.is_elsewhere
        )
        audit = Audit(self.config.audit_share)
        room = MemoryRoom(arena, self._placement, self._index, owner_of)
        flights = Flights(self._index, self._placement, room, self._clock, audit, on_transfer)
        self._retrieval = Retrieval(self._tiers, self._index, self._placement, flights, self._clock, audit)
        self._storing = Storing(self._placement, self._index, room, audit)
        self._manifests = Manifests(self._placement.below_memory)
        self._inquiries = Inquiries(self._tiers, self._index, self._placement, self._clock)
        self.foresight = Foresight(self._tiers, self._index, self._clock)
        self.copies = StoredCopies(self._tiers, self._index, self._placement, self._clock)
        self.admin = Administration(
            self._tiers,
            self._names,
            self._index,
            self._placement,
            self._storing,
            self._manifests,
            self._clock,
        )
        self._recovery = Recovery(self._tiers, self._index, self._placement, self._clock)
        self.pools = Pools(self)
        self._closed = False
        self.set_retention(self.config.retention)
        self._recovery.start()
        self._sweeper = Sweeper(self._placement, self._index, self._leases, self._clock)

    def lookup(self, keys: Sequence[bytes], lease_s: float | None = None, ttl_s: float | None = None) -> Hit:
        """Return where each block is, in one pass, with a lease on all that are resident.

        Holes are part of the answer: a block after a missing one is still a hit. A hit puts soft ends off,
        to ``ttl_s`` from now or else as rules and defaults have it. Raises ``RequestError`` for a TTL that is
        not above 0, or beyond a century.
        """
        ttl_ms = None if ttl_s is None else checked_ttl_ms(ttl_s)
        now_s, now_ms = self._clock.monotonic_s(), self._clock.wall_ms()
        self._leases.release_overdue(now_s)
        self._placement.remove_due(now_ms)
        mask = self._placement.findable_mask()
        found = self._index.find(keys, mask, now_ms, ttl_ms)
        names = self._names
        tiers = tuple(None if record is None else names[fastest(record.tiers & mask)] for record in found)
        records = [record for record in found if record is not None]
        deadline_s = now_s + (self.config.lease_s if lease_s is None else lease_s)
        hit = Hit(keys, tiers, records, deadline_s, self._released)
        if records:
            self._leases.add(hit)
        return hit

    def inquire(
        self,
        keys: Sequence[bytes],
        deadline_s: float,
        on_done: OnDone | None = None,
        block_bytes: int | None = None,
    ) -> Inquiry | None:
        """Ask each tier on a shared medium for those of ``keys`` that no faster tier has; never blocks.

        ``None``: there is nothing to ask. What is there can be looked up once the inquiry is done, and
        what was believed to be there and is not is dropped. It may be done at once, as when the tiers
        are left out for their faults; otherwise ``on_done`` is called on a transfer thread when it is.
        One abandoned after ``deadline_s`` (monotonic) counts as a fault of the tiers it waits for. A block
        whose raw length is not ``block_bytes`` is left where it is and not found.
        Raises ``StoreClosedError`` after ``close``.
        """
        self._refuse_when_closed()
        return self._inquiries.begin(keys, deadline_s, on_done, block_bytes)

    def load(self, hit: Hit, index: int, deadline_s: float, on_done: OnDone | None = None) -> Ticket:
        """Begin to load block ``index`` of ``hit`` from its fastest tier that stores bytes.

        ``deadline_s`` (the store's monotonic clock) is when the caller will stop waiting: a ticket
        abandoned later than that counts as a fault of its tier. The ticket may be done at once;
        otherwise ``on_done`` is called on a transfer thread when it is. Raises
        ``LeaseExpiredError`` after the hit's deadline or release, ``StoreClosedError`` after ``close``.
        """
        self._refuse_when_closed()
        late_s = self._clock.monotonic_s() - hit.deadline_s
        if late_s >= 0 or not hit.is_leased:
            hit.release()
            raise LeaseExpiredError(max(late_s, 0.0))
        return self._retrieval.load(hit.keys[index], deadline_s, on_done)

    def places(self, hit: Hit) -> list[Slot | None]:
        """Return where the blocks of ``hit.records`` lie in our own memory, to be read under its lease."""
        return self._retrieval.places(hit.records)

    def reserve(
        self, namespace: Namespace, key: bytes, parent: bytes, nbytes: int, *, num_tokens: int | None = None,
        first_token: int | None = None, ttl_s: float | None = None,
    ) -> Reservation | None:  # fmt: skip
        """Offer a block of ``nbytes``; fill ``view`` of what is returned, then ``commit`` or ``abort``.

        ``None``: do nothing; the block is here or on its way (its soft end is put off), or no tier
        has room for it, admits it or works. ``num_tokens`` is how many of the block's tokens are
        filled (default: all), ``first_token`` the position of the first (default: unknown), by which
        a tier judges what loading is worth. Raises ``RequestError`` for a TTL that is not above 0, or beyond
        a century. Never blocks on a lower tier.
        """
        ttl_ms = None if ttl_s is None else checked_ttl_ms(ttl_s)
        if self._closed or self._index.keeps_out(key, parent):
            return None
        self.register_namespace(namespace)
        tokens = namespace.block_tokens
        facts = Record(
            key, parent, namespace.digest, tokens, nbytes, self._clock.wall_ms(), first_token=first_token
        )
        return self._storing.reserve(facts, tokens if num_tokens is None else num_tokens, ttl_ms)

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
        """Store a copy of ``payload``. ``False``: nothing was stored, see ``reserve``."""
        reservation = self.reserve(namespace, key, parent, len(payload), first_token=first_token, ttl_s=ttl_s)
        if reservation is None:
            return False
        copy(payload, reservation.view)
        reservation.commit()
        return True

    def get_into(self, key: bytes, out: memoryview, timeout_s: float = 10.0) -> bool:
        """Read a block of ``len(out)`` bytes into ``out``; may block on I/O. ``False``: a miss."""
        self._refuse_when_closed()
        return self._retrieval.get_into(key, out, timeout_s)

    def own_namespace(self, namespace: Namespace) -> Namespace:
        """Return the namespace that our blocks are kept in: here the same one."""
        return namespace

    def register_namespace(self, namespace: Namespace) -> None:
        """Keep the namespace's manifest beside its blocks, in every tier that outlives us. Never blocks.

        A namespace that stores its first block is registered by that.
        """
        self.meet(namespace)
        self._manifests.register(namespace)

    def known_namespaces(self, timeout_s: float = 5.0) -> list[Namespace]:
        """Return the namespaces registered here, and those whose manifests the tiers keep.

        Blocks on the media, at most for ``timeout_s``. What is no manifest of this version is left out.
        """
        return self._manifests.known(timeout_s)

    def close(self, deadline_s: float = 10.0) -> None:
        """Write what is queued, then close every tier; returns within ``deadline_s``, come what may."""
        if self._closed:
            return
        self._closed = True
        ends_at_s = time.monotonic() + deadline_s
        self._recovery.stop()
        self._sweeper.stop()
        self._placement.close(ends_at_s)
        self._leases.release_overdue(float("inf"))

    def _released(self, records: Sequence[Record]) -> None:
        self._index.touch(records, self._clock.monotonic_s())
        self._storing.used_again(records)
        self._index.unhold(records)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise StoreClosedError
