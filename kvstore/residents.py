"""Which blocks there are, who holds them, when they end, and what became of those that left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvstore.absences import Absences, Cause
from kvstore.defaults import Defaults
from kvstore.lifespans import Lifespans
from kvstore.record import Record
from kvstore.tenants import Tenants
from kvstore.tier import DEVICE_BIT


class Residents(Lifespans):
    """Records by key. Thread-safe: everything happens under one lock and without any I/O.

    Tiers are numbered from the fastest; a record's ``tiers`` is a bit mask over those numbers.
    """

    def __init__(self, absences: Absences, defaults: Defaults, tenants: Tenants) -> None:
        super().__init__(defaults, tenants)
        self._absences = absences
        self.num_wanted = 0
        self.num_found = 0

    def __len__(self) -> int:
        return len(self._records)

    def find(
        self, keys: Sequence[bytes], mask: int, now_ms: int, ttl_ms: int | None = None
    ) -> list[Record | None]:
        """Return each key's record, held once, or ``None`` where no tier of ``mask`` has it alive.

        ``keys`` name a prefix, block by block: what follows one in quarantine is not to be trusted. A hit
        puts soft ends off: to ``ttl_ms`` from now, if that is given, else as rules and defaults have it.
        Every record returned must be passed to ``unhold``.
        """
        found: list[Record | None] = []
        get, last = self._records.get, b""
        with self._lock:
            use = self._lives.use_of_prompt(keys, now_ms, ttl_ms)
            _, until_ms, sure_ms = use
            num_found = 0
            for key in self._trusted(keys):
                record = get(key)
                if (
                    record is None
                    or (now_ms >= record.sure_ms and not self._lives.is_alive(record, now_ms))
                    or not record.tiers & mask
                ):
                    found.append(None)
                    last = key
                    continue
                num_found += 1
                record.num_holds += 1
                record.num_hits += 1
                record.hit_ms = now_ms
                if record.parent != last:
                    self._lives.use_ancestors(record.parent, use)
                if not until_ms:
                    record.used_ms = now_ms
                elif until_ms > record.named_ms:
                    record.named_ms = until_ms
                if sure_ms > record.sure_ms:
                    self._lives.put_off(record, sure_ms)
                found.append(record)
                last = key
            found += [None] * (len(keys) - len(found))
            self.num_wanted += len(keys)
            self.num_found += num_found
        return found

    def peek(self, keys: Sequence[bytes], mask: int, now_ms: int) -> list[int]:
        """Return the tiers of ``mask`` that have each block alive; nothing is held, touched or extended."""
        get = self._records.get
        with self._lock:
            alive = [
                record.tiers & mask if (record := get(key)) and self._is_alive(record, now_ms) else 0
                for key in self._trusted(keys)
            ]
        return alive + [0] * (len(keys) - len(alive))

    def hold(self, key: bytes, bit: int, now_ms: int, *, is_leased: bool = False) -> Record | None:
        """Return the record of ``key``, held once more, when tier ``bit`` has it alive.

        A lease outlasts a soft end, not a hard one.
        """
        with self._lock:
            record = self._records.get(key)
            if record is None or key in self._absences.quarantined:
                return None
            self._is_alive(record, now_ms)
            is_late = is_leased and record.over >> bit & 1 and record.hard_ms > now_ms
            if not record.tiers >> bit & 1 and not is_late:
                return None
            record.num_holds += 1
            return record

    def unhold(self, records: Iterable[Record]) -> None:
        """Give one hold of each record back."""
        with self._lock:
            for record in records:
                record.num_holds -= 1
                if not record.num_holds and (record.over or record.is_nowhere):
                    self._let_go(record)

    def offer(self, facts: Record, mask: int, ttl_ms: int | None) -> bool:
        """Tell a block that is offered when it ends; say whether a tier of ``mask`` has it already.

        Wherever it is, its soft end is put off, as are those of the blocks before it.
        """
        with self._lock:
            use = self._lives.begin(facts, ttl_ms)
            self._lives.use_ancestors(facts.parent, use)
            record = self._records.get(facts.key)
            if record is not None:
                self._lives.limit_known(record, facts)
            if record is None or not self._is_alive(record, facts.created_ms):
                return False
            self._lives.extend(record, use)
            return bool(record.tiers & mask)

    def report(self, bit: int, key: bytes, parent: bytes, namespace: bytes, now_ms: int) -> None:
        """Note that a tier that keeps its own books now holds this block."""
        facts = Record(key, parent, namespace, created_ms=now_ms)
        with self._lock:
            if (record := self._records.get(key)) is not None:
                self._lives.limit_known(record, facts)
                self._is_alive(record, now_ms)
            self._entered(bit, facts)

    def unreport(self, bit: int, key: bytes, now_ms: int) -> None:
        """Note that a tier that keeps its own books no longer holds this block."""
        with self._lock:
            record = self._records.get(key)
            if record is None:
                return
            self._is_alive(record, now_ms)
            if record.over >> bit & 1:
                self._clear_bit(key, bit, Cause.EXPIRED)
            elif record.tiers >> bit & 1:
                self._clear_bit(key, bit, Cause.EVICTED)

    def ended(self, keys: Sequence[bytes], now_ms: int) -> list[bytes]:
        """Return those of ``keys`` that the engine's own pool must not share.

        Their time is over there, or they are in quarantine or follow one that is.
        """
        get = self._records.get
        with self._lock:
            trusted = self._trusted(keys)
            is_over = self._lives.is_over
            over = [key for key in trusted if (record := get(key)) and is_over(record, DEVICE_BIT, now_ms)]
        return [*over, *keys[len(trusted) :]]

    def why_absent(self, key: bytes, mask: int, now_ms: int) -> tuple[Cause, int, int]:
        """Return (cause, tier, epoch ms) of what became of ``key``; ``mask``: the tiers that are readable."""
        with self._lock:
            record, departure = self._records.get(key), self._absences.get(key)
            if key in self._absences.quarantined:
                return departure or (Cause.QUARANTINED, 0, 0)
            if record is not None and record.unreadable and not record.tiers:
                return Cause.UNKNOWN_FORM, fastest(record.unreadable), 0
            if record is not None and not self._is_alive(record, now_ms) and record.over:
                bit = fastest(record.over)
                return Cause.EXPIRED, bit, min(now_ms, self._lives.end_ms(record, bit))
            if record is None or not record.tiers:
                return departure or (Cause.NEVER_STORED, 0, 0)
            if record.tiers & mask:
                return Cause.PRESENT, fastest(record.tiers & mask), 0
            return Cause.PAUSED, fastest(record.tiers), 0

    def note_absent(self, key: bytes, cause: Cause, bit: int) -> None:
        """Remember why a block did not come to tier ``bit``, unless it is somewhere else."""
        with self._lock:
            record = self._records.get(key)
            if (record is None or not record.tiers) and key not in self._absences.quarantined:
                self._absences.note(key, cause, bit)

    def quarantine(self, key: bytes) -> list[bytes]:
        """From now on, neither find ``key`` and what was computed on it nor take them in.

        Returns the keys that are known of these, for the caller to remove from the tiers.
        """
        with self._lock:
            suspects = [key, *self._descendants(key)]
            for suspect in suspects:
                record = self._records.get(suspect)
                tier = fastest(record.tiers) if record and record.tiers else 0
                self._absences.note(suspect, Cause.QUARANTINED, tier)
                self._absences.quarantine(suspect)
        return suspects

    def keeps_out(self, key: bytes, parent: bytes) -> bool:
        """Say whether a block is not taken in, for it or the block it was computed on is in quarantine."""
        if not self._absences.quarantined:
            return False
        with self._lock:
            return self._absences.keeps_out(key, parent)

    def end_quarantine(self) -> None:
        """Take blocks in again, but for those that a tier still has: the bad copy must go first."""
        with self._lock:
            quarantined = self._absences.quarantined
            for key in list(quarantined):
                record = self._records.get(key)
                if record is None or not record.tiers:
                    del quarantined[key]

    def is_quarantined(self, key: bytes) -> bool:
        """Say whether ``key`` is neither found nor taken in."""
        return key in self._absences.quarantined

    @property
    def num_quarantined(self) -> int:
        """Blocks in quarantine."""
        return len(self._absences.quarantined)

    @property
    def num_holds(self) -> int:
        """All holds there are; zero when nothing is leased, loading or being written."""
        with self._lock:
            return sum(record.num_holds for record in self._records.values())

    def _trusted(self, keys: Sequence[bytes]) -> Sequence[bytes]:
        """Return the keys of a prefix up to the first in quarantine."""
        kept_out = self._absences.quarantined
        if not kept_out:
            return keys
        return keys[: next((index for index, key in enumerate(keys) if key in kept_out), len(keys))]

    def _descendants(self, key: bytes) -> list[bytes]:
        children: dict[bytes, list[bytes]] = {}
        for record in self._records.values():
            children.setdefault(record.parent, []).append(record.key)
        found, unseen = list[bytes](), list(children.get(key, ()))
        while unseen:
            found.append(unseen.pop())
            unseen += children.get(found[-1], ())
        return found

    def _is_held(self, key: bytes) -> bool:
        record = self._records.get(key)
        return record is not None and record.num_holds > 0

    def _entered(self, bit: int, facts: Record) -> Record:
        is_unreadable = bool(facts.unreadable >> bit & 1)
        self._lives.limit(facts)
        record = self._records.setdefault(facts.key, facts)
        if record is not facts:
            self._lives.complete(record, facts)
        self._lives.enter(record, bit, is_unreadable=is_unreadable)
        if not self._absences.keeps_out(facts.key, facts.parent):
            self._absences.forget(facts.key)
        return record

    def _clear_bit(self, key: bytes, bit: int, cause: Cause) -> Record:
        record = self._records[key]
        self._lives.clear(record, bit)
        if record.tiers:
            return record
        if key not in self._absences.quarantined:
            self._absences.note(key, cause, bit)
        if record.is_nowhere:
            self._forget(record)
        return record

    def _let_go(self, record: Record) -> None:
        """Nobody holds it any more: its tiers may let go of it if its time is over."""
        if record.is_nowhere:
            self._forget(record)
        elif record.over:
            self._lives.hurry(record)

    def _forget(self, record: Record) -> None:
        self._records.pop(record.key, None)


def fastest(tiers: int) -> int:
    """Return the number of the fastest tier of a mask that is not empty."""
    return (tiers & -tiers).bit_length() - 1
