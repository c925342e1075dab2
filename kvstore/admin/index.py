"""The index as its operator sees it: all blocks, a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import TypeVar

from kvstore.absences import Cause
from kvstore.admin.forecast import Forecast
from kvstore.admin.outcome import Why
from kvstore.keeping import KeepingIndex
from kvstore.pins import Pin
from kvstore.record import FOREVER_MS, Record

T = TypeVar("T")

_A_FEW = 256
"""Looked at under one lock: well under a millisecond."""
_A_FEW_STEPS = 64
"""Planned under one lock."""


class OperatedIndex(KeepingIndex):
    """What ``KeepingIndex`` knows, for whoever goes over all of it. Thread-safe."""

    def survey(
        self, look: Callable[[Record], T | None], keys: Collection[bytes] | None = None,
        begin: Callable[[], None] | None = None,
    ) -> list[T]:  # fmt: skip
        """Return what ``look`` makes of all blocks (or of ``keys``, those that are known), but for ``None``.

        ``look`` is called under the lock, which is given back now and then: it must be quick, and let no
        block come or go. What comes meanwhile may be left out, what goes as well. ``begin`` is called each
        time that the lock was taken, which is for fewer then.
        """
        with self._lock:
            self._lives.settle()
            left = iter(list(self._records) if keys is None else keys)
        found: list[T] = []
        while some := list(islice(left, _A_FEW_STEPS if begin else _A_FEW)):
            with self._lock:
                if begin is not None:
                    begin()
                known = (record for key in some if (record := self._records.get(key)) is not None)
                found += [seen for record in known if (seen := look(record)) is not None]
        return found

    def alive_in(self, record: Record, now_ms: int) -> tuple[int, int]:
        """Return the tiers that have a block alive, and in a form that cannot be read, as masks.

        The caller has the lock, as in ``survey``; so it is for the methods below.
        """
        living = ~self._lives.over(record, now_ms)
        return record.tiers & living, record.unreadable & living

    def tenant_of(self, namespace: bytes) -> str | None:
        """Return the tenant of a namespace, ``None`` where it is not known."""
        return self._tenants.get(namespace)

    def nbytes_in(self, record: Record, bits: Iterable[int]) -> dict[int, int]:
        """Return the bytes that a block occupies in those of ``bits`` that have it and store bytes."""
        key, ledgers = record.key, self._ledgers
        return {bit: ledger.held[key] for bit in bits if (ledger := ledgers[bit]) and key in ledger.held}

    def known(self, key: bytes) -> Record:
        """Return what is known of a block that a tier holds."""
        return self._records[key]

    def is_in_use(self, key: bytes) -> bool:
        """Say whether a block is leased, being loaded or being written."""
        return self._is_held(key)

    def is_spared(self, key: bytes) -> bool:
        """Say whether a block goes after others."""
        return key in self.spared

    def forecast(self, bit: int) -> Forecast:
        """Return a forecast of a tier's books."""
        return Forecast(self._ledger(bit))

    def end_due_pins(self, bit: int) -> None:
        """Let all blocks be ordinary whose pins are over."""
        self._end_pins(self._ledger(bit), len(self._records))

    def pin_in(self, bit: int, key: bytes, now_ms: int) -> Pin | None:
        """Return a block's pin in a tier, if it is not over."""
        pin = self._ledger(bit).pins.pins.get(key)
        return pin if pin is not None and pin.until_ms > now_ms else None

    def pin_bytes_left(self, tenant: str) -> int:
        """Return how many bytes more a tenant may pin; negative when its budget was lowered."""
        return self._retention.tenant(tenant).pin_bytes - self._charges().get(tenant, 0)

    def has_ended_in(self, record: Record, bit: int, now_ms: int) -> bool:
        """Say whether a block's time in a tier, which may not have it, is over."""
        return self._lives.end_ms(record, bit) <= now_ms

    def why_kept(self, record: Record, bit: int) -> Why | None:
        """Return why a block may not be taken from a tier by hand; ``None``: it may."""
        if record.num_holds:
            return Why.IN_USE
        pins = self._ledger(bit).pins
        return Why.PINNED if record.key in pins or pins.has_children(record.key) else None

    def pinned_until_ms(self, key: bytes, now_ms: int) -> dict[int, int]:
        """Return until when tiers have a block pinned (epoch ms), by the tier's number."""
        found: dict[int, int] = {}
        for bit, ledger in enumerate(self._ledgers):
            pin = ledger.pins.pins.get(key) if ledger else None
            if pin is not None and pin.until_ms > now_ms:
                found[bit] = pin.until_ms
        return found

    def end_in(self, record: Record, bit: int) -> int | None:
        """Return when a block ends in a tier (epoch ms); ``None``: never."""
        return _or_never(self._lives.end_ms(record, bit))

    def hard_end(self, record: Record) -> int | None:
        """Return a block's hard end (epoch ms); ``None``: it has none."""
        return _or_never(record.hard_ms)

    def with_ancestors(self, keys: Collection[bytes]) -> set[bytes]:
        """Return these blocks and all that they follow, as far as they are known; takes the lock itself."""
        found = set(keys)

        def climb(record: Record) -> None:
            before = self._records.get(record.parent)
            while before is not None and before.key not in found:
                found.add(before.key)
                before = self._records.get(before.parent)

        self.survey(climb, keys)
        return found

    def set_ends(
        self, keys: Collection[bytes], now_ms: int, soft_ms: int | None, hard_ttl_ms: int | None
    ) -> list[Record]:
        """Let blocks end at ``soft_ms`` if nobody uses them, and ``hard_ttl_ms`` after their first write.

        Returns those that are there; takes the lock itself. The soft end of a pinned block waits for its pin.
        """

        def set_them(record: Record) -> Record | None:
            if not self._is_alive(record, now_ms):
                return None
            pinned_ms = max(self.pinned_until_ms(record.key, now_ms).values(), default=0)
            self._lives.set_ends(record, now_ms, soft_ms and max(soft_ms, pinned_ms), hard_ttl_ms)
            return record

        return self.survey(set_them, keys)

    def take(
        self, bit: int, key: bytes, cause: Cause, *, unused_since_ms: int | None = None, moves: bool = False
    ) -> Record | Why:
        """Begin to remove a block from a tier, as for room or by hand; takes the lock itself.

        Returns it, or why it stays: in use, pinned (unless its pin ``moves``), or used since then.
        """
        with self._lock:
            record, ledger = self._records.get(key), self._ledger(bit)
            if record is None or key not in ledger.held:
                return Why.NOT_THERE
            if unused_since_ms is not None and record.last_use_ms > unused_since_ms:
                return Why.IN_USE
            why = self.why_kept(record, bit)
            if why is Why.IN_USE or (why is Why.PINNED and not moves):
                return why
            ledger.begin_removal(key)
            return self._clear_bit(key, bit, cause)

    def move_pin(self, key: bytes, source: int, target: int) -> Record | Why | None:
        """Pin a block in another tier as it is in one, and there no more; takes the lock itself.

        Returns it; ``None``: it is not pinned there; or why it may not be pinned in the other.
        """
        with self._lock:
            there, here = self._ledger(target), self._ledger(source)
            pin = self.pin_in(source, key, self._wall_ms())
            if pin is None:
                return None
            nbytes = there.held.get(key)
            if nbytes is None:
                return Why.FAILED
            left_bytes = max(0, self.pin_bytes_left(pin.tenant)) + pin.charged_bytes
            if nbytes > left_bytes or 2 * (there.pins.pinned_bytes + nbytes) > there.budget_bytes:
                return Why.PIN_BUDGET
            here.unpin(key, self._now_s)
            there.pin(key, pin._replace(charged_bytes=nbytes))
            return self._records[key]

    def has_room(self, bit: int, nbytes: int, namespace: bytes) -> bool:
        """Say whether a block fits a tier as it is; takes the lock itself."""
        with self._lock:
            return self._ledger(bit).has_room(nbytes, namespace)

    def nbytes_of(self, bit: int, key: bytes) -> int | None:
        """Return the bytes that a block occupies in a tier, if it has it; takes the lock itself."""
        with self._lock:
            return self._ledger(bit).held.get(key)


def _or_never(end_ms: int) -> int | None:
    return None if end_ms >= FOREVER_MS else end_ms
