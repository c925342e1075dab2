"""The facade: look a prefix up, load its blocks, store new ones; every fault ends here as a miss."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvstore.arena import Arena
from kvstore.audit import Audit
from kvstore.clock import Clock
from kvstore.errors import ConfigError, LeaseExpiredError, StoreClosedError
from kvstore.flights import Flights
from kvstore.index import ResidencyIndex
from kvstore.leases import Hit, LeaseTable
from kvstore.ledger import Ledger
from kvstore.loading import OnDone, Ticket
from kvstore.namespace import Namespace
from kvstore.placement import Placement
from kvstore.record import Record
from kvstore.recovery import Recovery
from kvstore.retrieval import Retrieval
from kvstore.seams import Codec, Lending, OnTransfer
from kvstore.statistics import Health, State, StoreStatistics, TierHealth, TierStatistics
from kvstore.storing import Reservation, Storing
from kvstore.tier import DEVICE, MemoryTier, TierSpec, WriteMode, make_tier

_DEVICE_BIT = 0


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Times of the store as a whole.

    ``default_ttl_s`` is the soft TTL of blocks stored without one of their own; ``None``: they
    stay until evicted. ``audit_share`` of the blocks in our own memory, chosen by key, carry a
    checksum that each load verifies.
    """

    default_ttl_s: float | None = 24 * 3600.0
    lease_s: float = 30.0
    audit_share: float = 1 / 64

    def __post_init__(self) -> None:
        if self.default_ttl_s is not None and self.default_ttl_s <= 0:
            raise ConfigError("default_ttl_s", "must be positive, or unset for no end")
        if not 0 <= self.audit_share <= 1:
            raise ConfigError("audit_share", "must lie between 0 and 1")


@dataclass(frozen=True, slots=True)
class DeviceTier:
    """What the engine's own pool may hold; it reports which blocks it does."""

    budget_bytes: int = 0
    block_bytes: int = 0


class TieredStore:
    """Blocks in tiers, from the fastest to the slowest. Thread-safe.

    ``arena`` provides the memory in which blocks are filled and loads land; a tier whose backend
    can lend (``Lending``) keeps its blocks there as well, and must come first. Methods block on
    I/O only where they say so. The store owns the backends and closes them. ``codecs`` are forms
    that blocks on the media may have beside those that the tiers write; ``on_transfer`` hears of
    each block that was read from a medium.
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
    ) -> None:
        _refuse_odd_tiers(tiers)
        self.config = config or StoreConfig()
        self._clock = clock or Clock()
        self._device = device or DeviceTier()
        self._arena = arena
        known = [*codecs, *(spec.codec for spec in tiers if spec.codec)]
        self._tiers = tuple(
            make_tier(spec, bit, self._clock, known) for bit, spec in enumerate(tiers, start=1)
        )
        self._names = (DEVICE, *(tier.name for tier in self._tiers))
        ledgers = [Ledger(spec.config.budget_bytes, spec.policy) for spec in tiers]
        self._index = ResidencyIndex([None, *ledgers])
        self._leases = LeaseTable()
        self._placement = Placement(self._tiers, self._index, self._clock)
        audit = Audit(self.config.audit_share)
        flights = Flights(self._index, self._placement, arena, self._clock, audit, on_transfer)
        self._retrieval = Retrieval(self._tiers, self._index, self._placement, flights, self._clock, audit)
        self._storing = Storing(self._placement, self._index, arena, audit)
        self._recovery = Recovery(self._tiers, self._index, self._placement, self._clock)
        self._num_wanted = self._num_found = 0
        self._closed = False
        self._recovery.start()

    def lookup(self, keys: Sequence[bytes], lease_s: float | None = None, ttl_s: float | None = None) -> Hit:
        """Return where each block is, in one pass, with a lease on all that are resident.

        Holes are part of the answer: a block after a missing one is still a hit. A hit extends
        soft TTLs to ``ttl_s`` from now (``None``: the store's default).
        """
        now_s, now_ms = self._clock.monotonic_s(), self._clock.wall_ms()
        self._leases.release_overdue(now_s)
        self._placement.remove_due(now_ms)
        mask = 1 << _DEVICE_BIT | self._placement.readable_mask()
        found = self._index.find(keys, mask, now_ms, self._soft_ms(ttl_s))
        names = self._names
        tiers = tuple(None if record is None else names[_fastest(record.tiers & mask)] for record in found)
        records = [record for record in found if record is not None]
        self._num_wanted += len(keys)
        self._num_found += len(records)
        deadline_s = now_s + (self.config.lease_s if lease_s is None else lease_s)
        hit = Hit(keys, tiers, records, deadline_s, self._released)
        if records:
            self._leases.add(hit)
        return hit

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

    def reserve(
        self, namespace: Namespace, key: bytes, parent: bytes, nbytes: int, *, num_tokens: int | None = None,
        first_token: int | None = None, ttl_s: float | None = None,
    ) -> Reservation | None:  # fmt: skip
        """Offer a block of ``nbytes``; fill ``view`` of what is returned, then ``commit`` or ``abort``.

        ``None``: do nothing; the block is here or on its way (its TTL is extended), or no tier
        has room for it, admits it or works. ``num_tokens`` is how many of the block's tokens are
        filled (default: all), ``first_token`` the position of the first (default: unknown), by which
        a tier judges what loading is worth. Never blocks on a lower tier.
        """
        if self._closed:
            return None
        self._placement.put_manifest(namespace)
        tokens = namespace.block_tokens
        facts = Record(
            key, parent, namespace.digest, tokens, nbytes, self._clock.wall_ms(), self._soft_ms(ttl_s),
            first_token=first_token,
        )  # fmt: skip
        return self._storing.reserve(facts, tokens if num_tokens is None else num_tokens)

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
        reservation.view[:] = payload
        reservation.commit()
        return True

    def get_into(self, key: bytes, out: memoryview, timeout_s: float = 10.0) -> bool:
        """Read a block of ``len(out)`` bytes into ``out``; may block on I/O. ``False``: a miss."""
        self._refuse_when_closed()
        return self._retrieval.get_into(key, out, timeout_s)

    def device_added(self, key: bytes, parent: bytes) -> None:
        """Note that the engine's pool now holds this block."""
        self._index.report(_DEVICE_BIT, key, parent)

    def ended(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those of ``keys`` whose time is over; the engine's pool must not share them any more."""
        return self._index.ended(keys, self._clock.wall_ms())

    def device_removed(self, key: bytes) -> None:
        """Note that the engine's pool no longer holds this block."""
        self._index.unreport(_DEVICE_BIT, key)

    def register_namespace(self, namespace: Namespace) -> None:
        """Keep the namespace's manifest beside its blocks, in every tier that outlives us. Never blocks.

        A namespace that stores its first block is registered by that.
        """
        self._placement.put_manifest(namespace)

    def evict(self, keys: Iterable[bytes]) -> int:
        """Remove blocks from every tier that stores bytes; those in use stay. Returns how many went."""
        return sum(self._placement.remove_from(self._tiers, key) for key in keys)

    def clear(self, tier: str | None = None) -> int:
        """Remove every block that is not in use from ``tier`` or from all of them; returns how many.

        Raises ``ConfigError`` for a tier that is not there.
        """
        if tier is not None and tier not in self._names[1:]:
            raise ConfigError("tier", f"{tier!r} is not one of {', '.join(self._names[1:])}")
        chosen = [held for held in self._tiers if tier in {None, held.name}]
        resident = {key for held in chosen for key in self._index.resident(held.bit)}
        return sum(self._placement.remove_from(chosen, key) for key in resident)

    def flush(self, timeout_s: float) -> bool:
        """Block until what was stored has reached the lower tiers; says whether it has."""
        ends_at_s = time.monotonic() + timeout_s
        num_flushed = sum(tier.pool.flush(max(0.0, ends_at_s - time.monotonic())) for tier in self._tiers)
        return num_flushed == len(self._tiers)

    def health(self) -> Health:
        """Return the state of every tier and the worst of them."""
        tiers = {tier.name: tier.health(len(self._index.stuck(tier.bit))) for tier in self._tiers}
        if self._closed:
            tiers = dict.fromkeys(tiers, TierHealth(State.UNHEALTHY, "closed"))
        order = list(State)
        worst = max((health.state for health in tiers.values()), key=order.index, default=State.OK)
        return Health(worst, tiers)

    def statistics(self) -> StoreStatistics:
        """Return counts since the start and what each tier holds now, from the fastest."""
        _, num_on_device = self._index.usage(_DEVICE_BIT)
        device_bytes = num_on_device * self._device.block_bytes
        tiers = [TierStatistics(DEVICE, self._device.budget_bytes, device_bytes, num_on_device)]
        for tier in self._tiers:
            used, num_blocks = self._index.usage(tier.bit)
            counts = tier.counters.snapshot()
            tiers.append(TierStatistics(tier.name, tier.config.budget_bytes, used, num_blocks, counts))
        staging = self._arena.used_bytes - sum(
            self._index.usage(tier.bit)[0] for tier in self._tiers if isinstance(tier, MemoryTier)
        )
        return StoreStatistics(tuple(tiers), self._num_wanted, self._num_found, max(0, staging))

    def check(self) -> None:
        """Raise ``InvariantError`` when any of the books contradict each other."""
        self._index.check()
        self._arena.check()

    @property
    def num_holds(self) -> int:
        """Leases, loads and writes under way; zero when the store is at rest."""
        return self._index.num_holds

    def close(self, deadline_s: float = 10.0) -> None:
        """Write what is queued, then close every tier; returns within ``deadline_s``, come what may."""
        if self._closed:
            return
        self._closed = True
        ends_at_s = time.monotonic() + deadline_s
        self._recovery.stop()
        for tier in self._tiers:
            self._placement.close_tier(tier, ends_at_s)
        self._leases.release_overdue(float("inf"))

    def _released(self, records: Sequence[Record]) -> None:
        self._index.touch(records, self._clock.monotonic_s())
        self._storing.used_again(records)
        self._index.unhold(records)

    def _soft_ms(self, ttl_s: float | None) -> int:
        seconds = self.config.default_ttl_s if ttl_s is None else ttl_s
        return 0 if seconds is None else self._clock.wall_ms() + round(seconds * 1000)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise StoreClosedError


def _fastest(tiers: int) -> int:
    return (tiers & -tiers).bit_length() - 1


def _refuse_odd_tiers(tiers: Sequence[TierSpec]) -> None:
    names = [spec.config.name for spec in tiers]
    if len(set(names)) != len(names):
        raise ConfigError("tiers", f"names must differ: {', '.join(names)}")
    if any(isinstance(spec.backend, Lending) for spec in tiers[1:]):
        raise ConfigError("tiers", "a tier in our own memory must be the first")
    is_below_memory = False
    for spec in tiers:
        if spec.config.write_mode is not WriteMode.THROUGH and not is_below_memory:
            reason = "must be through for a tier that is not below one in our own memory"
            raise ConfigError(f"{spec.config.name}_write", reason)
        is_below_memory = is_below_memory or isinstance(spec.backend, Lending)
