"""How long the blocks of an index live: what rules, uses and defaults make of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvstore.ancestors import Ancestors
from kvstore.defaults import Defaults, Use
from kvstore.ends import Ends
from kvstore.frame import Expiry
from kvstore.record import Record
from kvstore.retention import Retention
from kvstore.rules import Limits, Rules
from kvstore.tenants import Tenants
from kvstore.tier import DEVICE_BIT

_DEVICE = 1 << DEVICE_BIT


class Departure(NamedTuple):
    """A block whose time is over in these ``tiers`` (a mask); ``is_hard``: for good, whoever holds it."""

    key: bytes
    tiers: int
    is_hard: bool


class Lives:
    """Keeps the ends of ``records``. Not thread-safe: whoever has the index's lock uses it.

    In which tiers a block's time is over is noted when somebody looks: from then on it is out of sight
    there (``Record.over``), and does not come back to life by a later use.
    """

    def __init__(self, records: dict[bytes, Record], defaults: Defaults, tenants: Tenants) -> None:
        self._records = records
        self._defaults = defaults
        self._ends = Ends(records, defaults)
        self._ancestors = Ancestors(records, self._extend_as_of)
        self._rules = Rules(Retention())
        self._tenants = tenants
        self.limited: list[Record] = []
        """Blocks that turned out to be under a hard limit; their headers do not say so."""
        self.over_in_pool: dict[bytes, None] = {}
        """Blocks that the engine's own pool, which keeps its own books, is to let go of."""
        self.num_on_device = 0
        """Blocks that are alive there."""

    def begin(self, facts: Record, ttl_ms: int | None) -> Use:
        """Tell a new block when it ends; returns the use that its storing is."""
        limits = self._limits_of(facts)
        use = self._defaults.use(facts.created_ms, limits.soft_ms if ttl_ms is None else ttl_ms)
        facts.named_ms, facts.used_ms = use.until_ms, 0 if use.until_ms else use.now_ms
        facts.hard_ms = min(facts.hard_ms, facts.created_ms + limits.hard_ms)
        return use

    def limit(self, facts: Record) -> None:
        """Let the hard limits of rules hold for a block that was found on a medium."""
        if not self._rules.is_plain and facts.created_ms:
            facts.hard_ms = min(facts.hard_ms, facts.created_ms + self._limits_of(facts).hard_ms)

    def limit_known(self, record: Record, facts: Record) -> None:
        """Let them hold for a block that is there and of which more is known now: which one it follows."""
        if not self._rules.is_plain and self._apply(record, Limits(None, self._limits_of(facts).hard_ms)):
            self.limited.append(record)

    def complete(self, record: Record, facts: Record) -> None:
        """Let a block be what a tier knows of it as well; one whose time was over begins anew by that."""
        self.limit(facts)
        if record.is_gone or record.hard_ms <= facts.created_ms:
            record.begin_anew(facts)
        else:
            record.complete_from(facts)
        self._ends.note(record)

    def use_of_prompt(self, keys: Sequence[bytes], now_ms: int, ttl_ms: int | None) -> Use:
        """Return what use of a prompt a request with this TTL is; hard limits of its rules hold at once."""
        if self._rules.is_plain:
            return self._defaults.use(now_ms, ttl_ms)
        records = [record for key in keys if (record := self._records.get(key)) is not None]
        namespace = next((record.namespace for record in records if record.namespace), b"")
        limits = self._rules.of_prompt(keys, self._tenants.get(namespace))
        for record in records:
            if record.namespace in (namespace, b""):
                self._apply(record, Limits(None, limits.hard_ms))
        return self._defaults.use(now_ms, limits.soft_ms if ttl_ms is None else ttl_ms)

    def use_ancestors(self, key: bytes, use: Use) -> None:
        """Put off the ends of the block of ``key`` and those before it, which one that follows needs."""
        if key:
            self._ancestors.note(key, use)

    def settle(self) -> None:
        """Carry out what was noted of ancestors: what is known of ends is complete then."""
        self._ancestors.settle()

    def extend(self, record: Record, use: Use) -> None:
        """Put off a living block's soft end."""
        if use.until_ms:
            record.named_ms = max(record.named_ms, use.until_ms)
        else:
            record.used_ms = max(record.used_ms, use.now_ms)
        if use.sure_ms > record.sure_ms:
            self.put_off(record, use.sure_ms)

    def set_ends(self, record: Record, now_ms: int, soft_ms: int | None, hard_ttl_ms: int | None) -> None:
        """Let a living block end as somebody wants it, soft ends sooner as well; ``None``: as it is."""
        if soft_ms is not None:
            record.named_ms, record.used_ms = soft_ms, 0
            self.use_ancestors(record.parent, Use(now_ms, soft_ms, soft_ms))
        if hard_ttl_ms is not None:
            record.hard_ms = min(record.hard_ms, (record.created_ms or now_ms) + hard_ttl_ms)
        self._ends.note(record)

    def put_off(self, record: Record, sure_ms: int) -> None:
        """Note that a block lives on until ``sure_ms`` in all its tiers, but for its hard end."""
        if not record.sure_ms:  # its first end
            self._ends.look_at(record, 0)
        record.sure_ms = min(sure_ms, record.hard_ms)

    def is_alive(self, record: Record, now_ms: int) -> bool:
        """Say whether any tier has it alive; it is out of sight where its time is over."""
        self.settle()
        if now_ms >= record.sure_ms and self._retire(record, now_ms):
            self._ends.look_at(record, 0)
        return record.tiers > 0

    def is_over(self, record: Record, bit: int, now_ms: int) -> bool:
        """Say whether a block's time in a tier is over, or that of the copy that this tier has."""
        if now_ms < record.sure_ms:
            return bool(record.over >> bit & 1)
        self.is_alive(record, now_ms)
        return bool(record.over >> bit & 1) or self._defaults.is_over(record, bit, now_ms)

    def over(self, record: Record, now_ms: int) -> int:
        """Return those tiers that have a block in which its time is over, noted or not, as a mask."""
        return 0 if now_ms < record.sure_ms else self._defaults.over(record, now_ms)

    def end_ms(self, record: Record, bit: int) -> int:
        """Return when a block ends in a tier."""
        return self._defaults.end_ms(record, bit)

    def expiry(self, facts: Record, bit: int, now_ms: int) -> Expiry | None:
        """Return a block's ends for its header in a tier, ``None`` when its time is over there.

        They are those of the block that is known by now; ``facts`` are what a writer knows of it.
        """
        self.settle()
        record = self._records.get(facts.key)
        if record is None or record.is_gone or record.hard_ms <= facts.created_ms:
            record = facts
        if facts.hard_ms <= now_ms or self._defaults.is_over(record, bit, now_ms):
            return None
        if not record.kept_named_ms and not record.kept_used_ms:
            record.note_kept()
        return self._defaults.expiry(record, bit)

    def are_behind(self, records: Iterable[Record], mask: int, now_ms: int) -> list[Record]:
        """Return those of ``records`` of which a header in a tier of ``mask`` lags behind."""
        return [record for record in records if self._defaults.is_behind(record, mask, now_ms)]

    def enter(self, record: Record, bit: int, *, is_unreadable: bool) -> None:
        """Note that a block came into a tier, and look at it when it ends."""
        if is_unreadable:
            record.unreadable |= 1 << bit
        else:
            self.num_on_device += bit == DEVICE_BIT and not record.tiers & _DEVICE
            record.tiers |= 1 << bit
        self.note(record)

    def note(self, record: Record) -> None:
        """Look at a block when it ends."""
        self._ends.note(record)

    def hurry(self, record: Record) -> None:
        """Look at a block whose time is over as soon as may be."""
        self._ends.look_at(record, 0)

    def clear(self, record: Record, bit: int) -> None:
        """Note that a tier has let go of a block."""
        gone = ~(1 << bit)
        self.num_on_device -= bool(record.tiers & ~gone & _DEVICE)
        record.tiers &= gone
        record.unreadable &= gone
        record.over &= gone
        if bit == DEVICE_BIT:
            self.over_in_pool.pop(record.key, None)

    def due(self, now_ms: int, limit: int) -> list[Departure]:
        """Return up to ``limit`` blocks for tiers to let go of, each once; held ones when they are free."""
        departures: list[Departure] = []
        if self._ends.has_due(now_ms):
            self.settle()
        for record in self._ends.due(now_ms):
            self._retire(record, now_ms)
            is_hard = record.hard_ms <= now_ms
            if (stored := record.over & ~_DEVICE) and (is_hard or not record.num_holds):
                departures.append(Departure(record.key, stored, is_hard))
                if len(departures) >= limit:
                    break
        return departures

    def set_rules(self, retention: Retention) -> list[Record]:
        """Let other rules hold from now on; returns the blocks whose ends moved."""
        self._rules.replace(retention)
        return self.apply_rules()

    def apply_rules(self, namespace: bytes | None = None) -> list[Record]:
        """Let the rules hold for all blocks there are (of a namespace); returns those whose ends moved."""
        if self._rules.is_plain:
            return []
        self.settle()
        return [
            record
            for record, limits in self._rules.survey(self._records, self._tenants.get)
            if namespace in {None, record.namespace} and self._apply(record, limits)
        ]

    def _limits_of(self, facts: Record) -> Limits:
        if self._rules.is_plain:
            return Limits()
        return self._rules.of_block(facts.key, facts.parent, self._tenants.get(facts.namespace))

    def _apply(self, record: Record, limits: Limits) -> bool:
        """Let limits hold for a block that is there; a use that named no end is counted by them."""
        is_moved = False
        if record.created_ms and record.created_ms + limits.hard_ms < record.hard_ms:
            record.hard_ms, is_moved = record.created_ms + limits.hard_ms, True
        if record.used_ms and limits.soft_ms is not None:
            record.named_ms = max(record.named_ms, record.used_ms + limits.soft_ms)
            record.used_ms, is_moved = 0, True
        if is_moved:
            self._ends.note(record)
        return is_moved

    def _retire(self, record: Record, now_ms: int) -> bool:
        """Put a block out of sight where its time is over, which it says, and note when to look again."""
        over = self._defaults.over(record, now_ms)
        self.num_on_device -= bool(record.tiers & over & _DEVICE)
        record.tiers &= ~over
        record.unreadable &= ~over
        record.over |= over
        if over & _DEVICE:
            self.over_in_pool[record.key] = None
        if record.tiers or record.unreadable:
            self._ends.note(record)
        elif record.hard_ms > now_ms:  # then it goes, whoever holds it
            self._ends.look_at(record, record.hard_ms)
        return over > 0

    def _extend_as_of(self, record: Record, since_ms: int, use: Use) -> bool:
        """Extend a block by a use that was noted, if it was alive at ``since_ms``, and say so."""
        if since_ms >= record.sure_ms and self._retire(record, since_ms):
            self._ends.look_at(record, 0)
        if record.tiers:
            self.extend(record, use)
        return record.tiers > 0
