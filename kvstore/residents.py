"""Which blocks there are, who holds them, when they end, and what became of those that left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock

from kvstore.absences import Absences, Cause
from kvstore.ends import Ends
from kvstore.record import Record


class Residents:
    """Records by key. Thread-safe: everything happens under one lock and without any I/O.

    Tiers are numbered from the fastest; a record's ``tiers`` is a bit mask over those numbers.
    """

    def __init__(self, absences: Absences) -> None:
        self._records: dict[bytes, Record] = {}
        self._ends = Ends(self._records)
        self._absences = absences
        self._lock = Lock()
        self.num_wanted = 0
        self.num_found = 0

    def __len__(self) -> int:
        return len(self._records)

    def find(self, keys: Sequence[bytes], mask: int, now_ms: int, soft_ms: int) -> list[Record | None]:
        """Return each key's record, held once, or ``None`` where no tier of ``mask`` has it alive.

        ``keys`` name a prefix, block by block: what follows one in quarantine is not to be trusted. A hit
        extends the block's soft limit to ``soft_ms``. Every record returned must be passed to ``unhold``.
        """
        found: list[Record | None] = []
        get = self._records.get
        with self._lock:
            num_found = 0
            for key in self._trusted(keys):
                record = get(key)
                if record is None or not record.tiers & mask or record.is_expired(now_ms):
                    found.append(None)
                    continue
                num_found += 1
                record.num_holds += 1
                record.extend(soft_ms)
                found.append(record)
            found += [None] * (len(keys) - len(found))
            self.num_wanted += len(keys)
            self.num_found += num_found
        return found

    def peek(self, keys: Sequence[bytes], mask: int, now_ms: int) -> list[int]:
        """Return the tiers of ``mask`` that have each block alive; nothing is held, touched or extended."""
        get = self._records.get
        with self._lock:
            alive = [
                record.tiers & mask if (record := get(key)) and not record.is_expired(now_ms) else 0
                for key in self._trusted(keys)
            ]
        return alive + [0] * (len(keys) - len(alive))

    def namespaces_of(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the digest of each block's namespace, ``None`` where it is not known."""
        get = self._records.get
        with self._lock:
            return [record.namespace or None if (record := get(key)) else None for key in keys]

    def hold(self, key: bytes, bit: int, now_ms: int | None = None) -> Record | None:
        """Return the record of ``key``, held once more, when tier ``bit`` has it (alive at ``now_ms``)."""
        with self._lock:
            record = self._records.get(key)
            if record is None or not record.tiers >> bit & 1 or key in self._absences.quarantined:
                return None
            if now_ms is not None and record.is_expired(now_ms):
                return None
            record.num_holds += 1
            return record

    def unhold(self, records: Iterable[Record]) -> None:
        """Give one hold of each record back."""
        with self._lock:
            for record in records:
                record.num_holds -= 1
                if not record.num_holds and record.is_nowhere:
                    self._forget(record)

    def contains(self, key: bytes, mask: int, soft_ms: int) -> bool:
        """Say whether a tier of ``mask`` has ``key``; wherever it is, its soft limit is extended."""
        record = self._records.get(key)
        if record is None:
            return False
        with self._lock:
            record.extend(soft_ms)
            return bool(record.tiers & mask)

    def ended(self, keys: Sequence[bytes], now_ms: int) -> list[bytes]:
        """Return those of ``keys`` that must not be used.

        Their time is over, or they are in quarantine or follow one that is.
        """
        get = self._records.get
        with self._lock:
            trusted = self._trusted(keys)
            over = [key for key in trusted if (record := get(key)) and record.is_expired(now_ms)]
        return [*over, *keys[len(trusted) :]]

    def due(self, now_ms: int, limit: int = 64) -> list[tuple[bytes, int]]:
        """Return up to ``limit`` blocks whose time is over and nobody holds: (key, tiers)."""
        with self._lock:
            return [(record.key, record.charged) for record in self._ends.due(now_ms, limit)]

    def why_absent(self, key: bytes, mask: int, now_ms: int) -> tuple[Cause, int, int]:
        """Return (cause, tier, epoch ms) of what became of ``key``; ``mask``: the tiers that are readable."""
        with self._lock:
            record, departure = self._records.get(key), self._absences.get(key)
            if key in self._absences.quarantined:
                return departure or (Cause.QUARANTINED, 0, 0)
            if record is not None and record.unreadable and not record.tiers:
                return Cause.UNKNOWN_FORM, fastest(record.unreadable), 0
            if record is None or not record.tiers:
                return departure or (Cause.NEVER_STORED, 0, 0)
            if record.is_expired(now_ms):
                return Cause.EXPIRED, fastest(record.tiers), record.expiry.at_ms
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
        is_unreadable = facts.unreadable >> bit & 1
        record = self._records.setdefault(facts.key, facts)
        if is_unreadable:
            record.unreadable |= 1 << bit
        else:
            record.tiers |= 1 << bit
        if record is not facts and facts.raw_bytes:
            record.complete_from(facts)
        self._ends.note(record)
        if not self._absences.keeps_out(facts.key, facts.parent):
            self._absences.forget(facts.key)
        return record

    def _clear_bit(self, key: bytes, bit: int, cause: Cause) -> Record:
        record = self._records[key]
        record.tiers &= ~(1 << bit)
        record.unreadable &= ~(1 << bit)
        if record.tiers:
            return record
        if key not in self._absences.quarantined:
            self._absences.note(key, cause, bit)
        if record.is_nowhere:
            self._forget(record)
        return record

    def _forget(self, record: Record) -> None:
        self._records.pop(record.key, None)


def fastest(tiers: int) -> int:
    """Return the number of the fastest tier of a mask that is not empty."""
    return (tiers & -tiers).bit_length() - 1
