"""The index with what is kept for whom: quotas of tenants and namespaces, and pins."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

from kvstore.absences import Cause
from kvstore.defaults import Use
from kvstore.errors import ConfigError, PinBudgetError
from kvstore.frame import Expiry
from kvstore.index import ResidencyIndex
from kvstore.namespace import Namespace
from kvstore.pins import Pin
from kvstore.record import Record
from kvstore.retention import Retention
from kvstore.statistics import GroupUsage, TenantPins

_MOST_GROUPS_TOLD = 64
"""Of tenants and namespaces that no rule names: anybody may invent them."""


@dataclass(slots=True)
class Wish:
    """What a pin asks for, tier by tier: the blocks that are there, and the bytes not pinned yet."""

    tenant: str = ""
    records: dict[int, list[Record]] = field(default_factory=dict)
    new_bytes: dict[int, int] = field(default_factory=dict)


class KeepingIndex(ResidencyIndex):
    """What ``ResidencyIndex`` knows, held to the rules of a ``Retention``. Thread-safe."""

    _retention = Retention()

    def register(self, namespace: Namespace) -> list[Record]:
        """Note to whom a namespace belongs. Blocks of it that were found before count for its tenant now.

        Returns those whose ends moved by that.
        """
        if namespace.digest in self._tenants:
            return []
        with self._lock:
            if not self._tenants.learn(namespace.digest, namespace.tenant, self._namespaces_in_use):
                return []
            self._regroup()
            return self._lives.apply_rules(namespace.digest)

    def set_retention(self, retention: Retention) -> list[Record]:
        """Hold to these rules from now on; looks once at every block. Returns those whose ends moved."""
        with self._lock:
            self._retention = retention
            for ledger in self._ledgers:
                if ledger and ledger.quotas.set_rules(retention):
                    ledger.regroup(self._facts_of, self._time(-inf))
            return self._lives.set_rules(retention)

    @property
    def retention(self) -> Retention:
        """The rules that hold now."""
        return self._retention

    @property
    def must_know_tenants(self) -> bool:
        """Whether rules give tenants quotas or pins, so that their blocks have to be told apart."""
        rules = (self._retention.others, *self._retention.tenants.values())
        return any(rule.quotas or rule.pin_bytes for rule in rules)

    def apply_rules(self) -> list[Record]:
        """Let rules hold for blocks that have come in any order; returns those whose ends moved."""
        with self._lock:
            return self._lives.apply_rules()

    def header_times(self, bit: int, key: bytes, now_ms: int) -> tuple[Expiry, int] | None:
        """Return a block's ends, and until when it is pinned (0: it is not); ``None``: it is not there."""
        with self._lock:
            record, pin = self._records.get(key), self._ledger(bit).pins.pins.get(key)
            if record is None or not record.tiers >> bit & 1:
                return None
            expiry = self._lives.expiry(record, bit, now_ms)
            return None if expiry is None else (expiry, pin.until_ms if pin else 0)

    def pin(self, keys: Sequence[bytes], bits: Sequence[int], names: Sequence[str], until_ms: int) -> Wish:
        """Pin what tiers ``bits`` have of these blocks and of what they follow; all of it or nothing.

        Raises ``PinBudgetError``, or ``ConfigError`` for blocks of two tenants, or of none that is known.
        """
        with self._lock:
            for bit in bits:
                self._end_pins(self._ledger(bit), len(self._records))
            wish = self._wish(self._prefixes(keys), bits)
            self._refuse_beyond(wish, names)
            self._pin(wish, until_ms)
            return wish

    def restore_pin(self, bit: int, key: bytes, until_ms: int) -> None:
        """Pin a block that was pinned when its header was written, as far as its tenant's budget allows."""
        if until_ms <= self._wall_ms():
            return
        with self._lock:
            ledger, record = self._ledger(bit), self._records.get(key)
            tenant = self._tenants.get(record.namespace) if record else None
            if record is None or tenant is None or key not in ledger.held or key in ledger.pins:
                return
            wish = Wish(tenant, {bit: [record]}, {bit: ledger.held[key]})
            with suppress(PinBudgetError):
                self._refuse_beyond(wish, None)
                self._pin(wish, until_ms)

    def unpin(self, keys: Sequence[bytes], bits: Sequence[int]) -> list[Record]:
        """Let blocks, and what they follow, be ordinary; returns those that were pinned, for each tier.

        What another pinned block follows stays pinned.
        """
        with self._lock:
            unpinned: list[Record] = []
            for key in reversed(self._prefixes(keys)):
                for ledger in map(self._ledger, bits):
                    if key in ledger.pins and not ledger.pins.has_children(key):
                        ledger.unpin(key, self._now_s)
                        unpinned.append(self._records[key])
            return unpinned

    def pins(self, bit: int) -> list[Pin]:
        """Return the pins of a tier that are not over."""
        now_ms = self._wall_ms()
        with self._lock:
            pins = list(self._ledger(bit).pins.pins.values())
        return [pin for pin in pins if pin.until_ms > now_ms]

    def evict_all(self, bit: int, keys: Sequence[bytes]) -> list[Record]:
        """Begin to remove blocks from a tier, all of them, or none if any is gone, in use or pinned."""
        ledger = self._ledger(bit)
        with self._lock:
            is_kept = ledger.kept(self._is_held)
            if any(key not in ledger.held or is_kept(key) for key in keys):
                return []
            for key in keys:
                ledger.begin_removal(key)
            return [self._clear_bit(key, bit, Cause.EVICTED) for key in keys]

    def usage(self, bit: int) -> tuple[int, int]:
        """Return (bytes used, blocks held) of a tier."""
        ledger = self._ledgers[bit]
        with self._lock:
            if ledger is None:
                return 0, self._lives.num_on_device
            return ledger.used_bytes, len(ledger.held)

    def pinned(self, bit: int) -> tuple[int, int]:
        """Return (blocks, bytes) that are pinned in a tier."""
        ledger = self._ledger(bit)
        with self._lock:
            self._end_pins(ledger)
            return len(ledger.pins), ledger.pins.pinned_bytes

    def pins_by_tenant(self) -> tuple[TenantPins, ...]:
        """Return who has pinned how much, whom the rules name and then those with the most."""
        with self._lock:
            charges = self._charges()
            named = [tenant for tenant, rule in self._retention.tenants.items() if rule.pin_bytes]
            most = sorted(charges.keys() - set(named), key=lambda tenant: (-charges[tenant], tenant))
            return tuple(
                TenantPins(tenant, charges.get(tenant, 0), self._retention.tenant(tenant).pin_bytes)
                for tenant in (*named, *most[:_MOST_GROUPS_TOLD])
            )

    def groups(self, bit: int) -> tuple[GroupUsage, ...]:
        """Return what groups use of their quotas in a tier: whom the rules name, then the largest."""
        with self._lock:
            return self._ledger(bit).quotas.usage(_MOST_GROUPS_TOLD)

    def num_over_quota(self, bit: int) -> int:
        """Return how many blocks a tier did not take because a quota had no room for them."""
        return self._ledger(bit).num_over_quota

    def _prefixes(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return ``keys`` and the blocks they follow, as far as those are known: each after its parent."""
        ordered = dict[bytes, None]()
        for key in keys:
            path, ancestor = dict[bytes, None](), key
            while ancestor and ancestor not in ordered and ancestor not in path:
                path[ancestor] = None  # a medium may tell of parents that go in a circle
                record = self._records.get(ancestor)
                ancestor = record.parent if record else b""
            ordered.update(dict.fromkeys(reversed(path)))
        return list(ordered)

    def _wish(self, keys: Sequence[bytes], bits: Sequence[int]) -> Wish:
        wish, tenants = Wish(), set[str | None]()
        for bit in bits:
            ledger, new_bytes = self._ledger(bit), 0
            there = [record for key in keys if (record := self._alive(key, bit))]
            for record in there:
                tenants.add(self._tenants.get(record.namespace))
                new_bytes += 0 if record.key in ledger.pins else ledger.held[record.key]
            wish.records[bit], wish.new_bytes[bit] = there, new_bytes
        if len(tenants) > 1 or None in tenants:
            reason = "belong to several tenants: pin each one's by themselves"
            told = "name a block whose tenant is not known: register its namespace"
            raise ConfigError("keys", told if None in tenants else reason)
        wish.tenant = next((tenant for tenant in tenants if tenant), "")
        return wish

    def _pin(self, wish: Wish, until_ms: int) -> None:
        """Pin what fits, and put off soft ends until then."""
        use = Use(self._wall_ms(), until_ms, until_ms)
        for bit, records in wish.records.items():
            ledger = self._ledger(bit)
            for record in records:
                charged_bytes = ledger.held[record.key]
                ledger.pin(record.key, Pin(record.parent, until_ms, wish.tenant, charged_bytes))
                self._lives.extend(record, use)

    def _alive(self, key: bytes, bit: int) -> Record | None:
        record = self._records.get(key)
        is_alive = record is not None and self._is_alive(record, self._wall_ms())
        return record if is_alive and record and record.tiers >> bit & 1 else None

    def _refuse_beyond(self, wish: Wish, names: Sequence[str] | None) -> None:
        """Raise ``PinBudgetError`` when a wish is more than its tenant, or half of a tier, has left."""
        budget_bytes = self._retention.tenant(wish.tenant).pin_bytes
        left_bytes = max(0, budget_bytes - self._charges().get(wish.tenant, 0))
        wanted_bytes = sum(wish.new_bytes.values())
        if wanted_bytes > left_bytes:
            bound = f"the tenant's pin budget of {budget_bytes} (pin_bytes)"
            raise PinBudgetError(bound, wanted_bytes, left_bytes)
        for bit, wanted_bytes in wish.new_bytes.items():
            ledger = self._ledger(bit)
            half_bytes = ledger.budget_bytes // 2
            left_bytes = half_bytes - ledger.pins.pinned_bytes
            if wanted_bytes > left_bytes:
                bound = f"half of the tier {names[bit]}" if names else "half of the tier"
                raise PinBudgetError(bound, wanted_bytes, left_bytes)

    def _charges(self) -> dict[str, int]:
        """Return what is charged to each tenant: all ledgers keep it together."""
        return next((ledger.pins.charges for ledger in self._ledgers if ledger), {})

    def _regroup(self) -> None:
        for ledger in self._ledgers:
            if ledger and ledger.quotas.has_rules:
                ledger.regroup(self._facts_of, self._time(-inf))

    def _facts_of(self, key: bytes) -> tuple[bytes, bytes]:
        record = self._records[key]
        return record.namespace, record.parent

    def _namespaces_in_use(self) -> set[bytes]:
        arriving = (room.namespace for ledger in self._ledgers if ledger for room in ledger.arriving.values())
        return {record.namespace for record in self._records.values()}.union(arriving)
