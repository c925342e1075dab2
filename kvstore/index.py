"""The residency index: all bookkeeping of the store, under one lock and without any I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TypeVar

from kvstore.absences import Absences, Cause
from kvstore.defaults import Defaults
from kvstore.errors import InvariantError
from kvstore.hints import Hint
from kvstore.ledger import Ledger
from kvstore.making_room import Room
from kvstore.record import Record
from kvstore.residents import Residents
from kvstore.seams import IsHeld
from kvstore.spared import Spared
from kvstore.tenants import Tenants
from kvstore.tier import DEVICE_BIT

T = TypeVar("T")


class ResidencyIndex(Residents):
    """What ``Residents`` knows, and the ledger of each tier that stores bytes. Thread-safe.

    ``ledgers[bit]`` is ``None`` for a tier that keeps its own books and only reports what it
    holds (the device pool).
    """

    def __init__(
        self,
        ledgers: Sequence[Ledger | None],
        absences: Absences,
        wall_ms: Callable[[], int],
        tenants: Tenants,
        defaults: Defaults,
    ) -> None:
        super().__init__(absences, defaults, tenants)
        self._ledgers = tuple(ledgers)
        self._tenants = tenants
        self._wall_ms = wall_ms
        self._now_s = -inf
        self.spared = Spared()

    def touch(self, records: Sequence[Record], now_s: float) -> None:
        """Note a use in every tier, last block first, so that a parent outlives its children."""
        ledgers = [(1 << bit, ledger) for bit, ledger in enumerate(self._ledgers) if ledger]
        with self._lock:
            now_s = self._time(now_s)
            for record in reversed(records):
                for mask, ledger in ledgers:
                    if record.tiers & mask:
                        ledger.touch(record.key, now_s)

    def hears(self, bit: int) -> bool:
        """Say whether a tier's policy takes hints."""
        return self._ledger(bit).hears

    def hear(self, bit: int, keys: Sequence[bytes], hint: Hint, now_s: float) -> None:
        """Pass a hint about a prompt on to a tier's policy."""
        with self._lock:
            self._ledger(bit).hear(keys, hint, self._time(now_s))

    def reserve(self, bit: int, facts: Record, footprint_bytes: int) -> tuple[Room, list[Record]] | None:
        """Set room aside in a tier; returns it with its victims' records, or ``None``: none, or not wanted.

        The victims are out of the index when this returns; the caller deletes them from the
        medium before it uses the room.
        """
        ledger = self._ledger(bit)
        with self._lock:
            if facts.key in self._absences.quarantined:
                return None
            key, space = facts.key, facts.namespace
            room = self._choose(ledger, lambda is_kept: ledger.reserve(key, footprint_bytes, is_kept, space))
            if room is None:
                ledger.note_refusal(facts.key, footprint_bytes, facts.namespace)
                return None
            victims = [self._clear_bit(victim, bit, Cause.EVICTED) for victim in room.victims]
        return room, victims

    def evict_next(self, bit: int) -> Record | None:
        """Begin to remove the block that is next to go in a tier; ``None`` when all are in use."""
        ledger = self._ledger(bit)
        with self._lock:
            victim = self._choose(ledger, ledger.next_victim)
            if victim is None:
                return None
            ledger.begin_removal(victim)
            return self._clear_bit(victim, bit, Cause.EVICTED)

    def begin_replacement(self, bit: int, key: bytes, now_ms: int) -> bool:
        """Begin to remove a copy whose time in a tier is over, for another to take its place.

        ``False``: there is none, or somebody holds it and no other is alive.
        """
        with self._lock:
            record = self._records.get(key)
            is_free = record is not None and (self._is_alive(record, now_ms) or not record.num_holds)
            if record is None or not record.over >> bit & 1 or not is_free:
                return False
            self._ledger(bit).begin_removal(key)
            self._clear_bit(key, bit, Cause.EXPIRED)
            return True

    def begin_expiry(self, bit: int, key: bytes, *, is_hard: bool) -> bool:
        """Begin to remove a copy whose time in a tier is over; one that is held only when that ``is_hard``.

        ``False``: it is gone, or another took its place since its time was found to be over.
        """
        with self._lock:
            record = self._records.get(key)
            if record is None or not record.over >> bit & 1 or (record.num_holds and not is_hard):
                return False
            self._ledger(bit).begin_removal(key)
            self._clear_bit(key, bit, Cause.EXPIRED)
            return True

    def is_moving(self, bit: int, key: bytes) -> bool:
        """Say whether a block is on its way into or out of a tier, or out of it when nobody holds it."""
        ledger = self._ledger(bit)
        with self._lock:
            is_over = (record := self._records.get(key)) is not None and record.over >> bit & 1 > 0
            return is_over or key in ledger.arriving or key in ledger.leaving

    def cancel(self, bit: int, room: Room) -> None:
        """Give a reservation back."""
        with self._lock:
            self._ledger(bit).cancel(room)

    def settle(self, bit: int, room: Room, facts: Record, now_s: float, *, is_theirs: bool = False) -> None:
        """Make the block of ``room`` visible in its tier, in one step; ``is_theirs``: others stored it."""
        with self._lock:
            self._ledger(bit).settle(room, facts.parent, self._time(now_s), is_theirs=is_theirs)
            self._entered(bit, facts)

    def settle_in_memory(self, bit: int, room: Room, facts: Record, now_s: float) -> Record:
        """Do so in our own memory; returns the block's record, held once, with these bytes' checksum."""
        with self._lock:
            self._ledger(bit).settle(room, facts.parent, self._time(now_s))
            record = self._entered(bit, facts)
            record.checksum = facts.checksum
            record.num_holds += 1
            return record

    def recovered(self, bit: int, facts: Record, footprint_bytes: int, now_s: float) -> bool:
        """Enter a block found on a medium; ``False`` when the budget has no room for it."""
        ledger = self._ledger(bit)
        with self._lock:
            if ledger.knows(facts.key):
                return True
            if self._absences.keeps_out(facts.key, facts.parent):
                return False
            self._tenants.met(facts.namespace)
            if not ledger.has_room(footprint_bytes, facts.namespace):
                return False
            ledger.add(facts.key, facts.parent, footprint_bytes, self._time(now_s), namespace=facts.namespace)
            self._entered(bit, facts)
            return True

    def found(
        self, bit: int, facts: Record, footprint_bytes: int, now_s: float, *, was_known: bool
    ) -> bool | None:
        """Enter a block that others stored on a shared medium; says whether it is new.

        One that is known is extended; one that ``was_known`` when the medium was asked has gone meanwhile.
        Others' blocks make way at once. ``None``: there is no room unless some of our own go.
        """
        ledger = self._ledger(bit)
        with self._lock:
            if was_known and not ledger.knows(facts.key):
                return False
            if facts.key in ledger.held:
                record = self._records[facts.key]
                self._lives.complete(record, facts)
                if not record.tiers >> bit & 1:  # what lay there before could not be read
                    ledger.forget(facts.key)
                    self._clear_bit(facts.key, bit, Cause.EVICTED)
            if ledger.knows(facts.key) or self._absences.keeps_out(facts.key, facts.parent):
                return False
            self._tenants.met(facts.namespace)
            victims = ledger.their_victims(footprint_bytes, self._is_held, facts.namespace)
            if victims is None:
                return None
            for victim in victims:
                ledger.forget(victim)
                self._clear_bit(victim, bit, Cause.EVICTED)
            ledger.add(
                facts.key, facts.parent, footprint_bytes, self._time(now_s), namespace=facts.namespace,
                is_theirs=True,
            )  # fmt: skip
            self._entered(bit, facts)
            return True

    def held_and_known(self, bit: int, keys: Sequence[bytes]) -> tuple[set[bytes], set[bytes]]:
        """Return those of ``keys`` that a tier has, and those that also are on their way in or out."""
        ledger = self._ledger(bit)
        with self._lock:
            return {key for key in keys if key in ledger.held}, {key for key in keys if ledger.knows(key)}

    def is_theirs(self, bit: int, key: bytes) -> bool:
        """Say whether a block of a tier, or on its way out of it, was stored by others."""
        return key in self._ledger(bit).theirs

    def begin_rejection(self, bit: int, key: bytes) -> bool:
        """Begin to remove a block found on a medium and not wanted; ``False``: the index knows it by now."""
        with self._lock:
            return self._ledger(bit).begin_rejection(key)

    def disown(self, bit: int, key: bytes) -> None:
        """Note that a tier's copy cannot be read here: it stays there, and is found no more."""
        with self._lock:
            record = self._records.get(key)
            if record is not None and record.tiers >> bit & 1:
                record.tiers &= ~(1 << bit)
                record.unreadable |= 1 << bit

    def begin_removal(self, bit: int, key: bytes, cause: Cause, *, even_if_held: bool = False) -> bool:
        """Take a block out of a tier; its bytes count until ``confirm_removal``. ``False``: not done.

        A held block stays, unless ``even_if_held``: what is bad must go, and whoever holds it
        finds it gone.
        """
        with self._lock:
            if not even_if_held and self._is_held(key):
                return False
            if not self._ledger(bit).begin_removal(key):
                return False
            self._clear_bit(key, bit, cause)
            return True

    def confirm_removal(self, bit: int, key: bytes) -> None:
        """Note that the medium has let go of ``key``."""
        with self._lock:
            self._ledger(bit).confirm_removal(key)

    def removal_failed(self, bit: int, key: bytes) -> None:
        """Note that the medium still has ``key``; its bytes keep counting."""
        with self._lock:
            self._ledger(bit).removal_failed(key)

    def is_void(self, bit: int, room: Room) -> bool:
        """Say whether a reservation was lost because a victim could not be removed."""
        with self._lock:
            return self._ledger(bit).is_void(room)

    def stuck(self, bit: int) -> list[bytes]:
        """Return the blocks that a tier's medium did not let go of."""
        with self._lock:
            return list(self._ledger(bit).stuck)

    def resident(self, bit: int) -> list[bytes]:
        """Return the keys a tier holds, for operations over all of it."""
        with self._lock:
            return list(self._ledger(bit).held)

    def check(self) -> None:
        """Raise ``InvariantError`` when records, masks, holds and ledgers contradict each other."""
        with self._lock:
            for record in self._records.values():
                if record.num_holds < 0:
                    raise InvariantError(f"a block is held {record.num_holds} times")
                if record.is_nowhere:
                    raise InvariantError("a record of a block that is nowhere")
            num_on_device = sum(record.tiers >> DEVICE_BIT & 1 for record in self._records.values())
            if num_on_device != self._lives.num_on_device:
                raise InvariantError(f"{self._lives.num_on_device} blocks on the device, not {num_on_device}")
            for bit, ledger in enumerate(self._ledgers):
                if ledger is None:
                    continue
                ledger.check()
                marked = {key for key, record in self._records.items() if record.charged >> bit & 1}
                if marked != ledger.held.keys():
                    raise InvariantError(f"tier {bit}: the index and the ledger name other blocks")

    def _choose(self, ledger: Ledger, how: Callable[[IsHeld], T | None]) -> T | None:
        """Return what ``how`` chooses of what is not held, nor spared unless it must be; due pins end."""
        self._end_pins(ledger)
        chosen = self.spared.choose(how, self._is_held)
        while chosen is None and self._end_pins(ledger):
            chosen = self.spared.choose(how, self._is_held)
        return chosen

    def _end_pins(self, ledger: Ledger, limit: int = 16) -> int:
        """Let up to ``limit`` blocks be ordinary whose pins are over; returns how many it were."""
        if not ledger.pins.pins:
            return 0
        return ledger.end_pins(self._wall_ms(), self._now_s, limit)

    def _ledger(self, bit: int) -> Ledger:
        if (ledger := self._ledgers[bit]) is None:
            raise InvariantError(f"tier {bit} keeps its own books")
        return ledger

    def _time(self, now_s: float) -> float:
        """Return ``now_s``, or a later time seen before: callers read the clock before they have the lock."""
        self._now_s = max(self._now_s, now_s)
        return self._now_s
