"""Blocks on their way in from a medium: queued, read into staging memory, handed to whoever waits."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from threading import Condition

from kvstore.arena import Slot
from kvstore.audit import Audit
from kvstore.clock import Clock
from kvstore.frame import checksum
from kvstore.index import ResidencyIndex
from kvstore.loading import Load, OnDone, SharedBytes, Ticket
from kvstore.memory_room import MemoryRoom
from kvstore.placement import Placement
from kvstore.reading import Arrival, Landing, Read
from kvstore.record import Record
from kvstore.seams import OnTransfer, Transfer
from kvstore.statistics import Count
from kvstore.tier import Tier

_STAGING_WAIT_S = 10.0


@dataclass(slots=True, eq=False)
class _Flight:
    """One transfer: the block, held, what its bytes turn out to be, who waits for it, where it lands."""

    tier: Tier
    record: Record
    landed: Record
    load: Load
    began_s: float
    slot: Slot | None = None


class Flights:
    """Transfers under way, one per key at a time, whoever asks. Thread-safe.

    Of a tier that streams, a reader takes as many as wait and there is memory for, in one exchange.
    Each load ends as soon as its block has arrived; a fault ends those that have not.
    """

    def __init__(
        self,
        index: ResidencyIndex,
        placement: Placement,
        room: MemoryRoom,
        clock: Clock,
        audit: Audit,
        on_transfer: OnTransfer | None,
    ) -> None:
        self._index = index
        self._placement = placement
        self._room = room
        self._clock = clock
        self._audit = audit
        self._on_transfer = on_transfer
        self._flights: dict[bytes, _Flight] = {}
        # By tier; for each flight there is one job in its pool.
        self._waiting: defaultdict[int, deque[_Flight]] = defaultdict(deque)
        self._changed = Condition()
        self._in_line: deque[_Flight] = deque()  # those that wait for memory to land in

    def begin(self, tier: Tier, record: Record, deadline_s: float, on_done: OnDone | None) -> Ticket:
        """Join the transfer of this block that is under way, or begin one; ``record`` is held.

        A ticket abandoned after ``deadline_s`` counts against the tier.
        """

        def note_if_late() -> None:
            if self._clock.monotonic_s() >= deadline_s:
                tier.note_late_load()

        with self._changed:
            flight = self._flights.get(record.key)
            ticket = flight.load.join(on_done, note_if_late) if flight else None
            if ticket is not None:
                self._index.unhold([record])
                return ticket
            flight = _Flight(tier, record, record.copy(), Load(), self._clock.monotonic_s())
            self._flights[record.key] = flight
            ticket = Ticket.on(flight.load, on_done, note_if_late)
        if not self._queue(tier, flight):
            self._refuse(flight)
        return ticket

    def _queue(self, tier: Tier, flight: _Flight) -> bool:
        if not tier.is_streaming:
            return tier.pool.read(partial(self._run, flight))
        with self._changed:  # so that there is never a flight without a job, nor a job too early for it
            is_queued = tier.pool.read(partial(self._run_batches, tier))
            if is_queued:
                self._waiting[tier.bit].append(flight)
        return is_queued

    def _run(self, flight: _Flight) -> None:
        """Move one block; whatever happens, whoever waits for it hears of the end."""
        try:
            flight.slot = self._staging_slot(flight)
            if flight.slot is None:
                self._refuse(flight)
            else:
                self._arrived(flight, flight.tier.read(Landing(flight.landed, flight.slot.view)))
        finally:
            self._end_all([flight])

    def _run_batches(self, tier: Tier) -> None:
        """Move blocks that wait, and those that were left behind: theirs may have been the last job."""
        while self._run_batch(tier):
            pass

    def _run_batch(self, tier: Tier) -> bool:
        """Move blocks in one exchange; all who wait hear of the end. Says whether one was left behind."""
        boarded: list[_Flight] = []
        try:
            is_one_left = self._board(tier, boarded)
            landings = [Landing(flight.landed, flight.slot.view) for flight in boarded if flight.slot]
            with closing(tier.read_each(landings)) as arrivals:
                for flight, arrival in zip(boarded, arrivals, strict=True):
                    self._arrived(flight, arrival)
        finally:
            self._end_all(boarded)
        return is_one_left

    def _end_all(self, flights: Iterable[_Flight]) -> None:
        for flight in flights:
            if not flight.load.is_finished():
                self._finish(flight, None)

    def _board(self, tier: Tier, boarded: list[_Flight]) -> bool:
        """Add flights that wait to ``boarded``, as many as go in one exchange, with memory to land in.

        One that cannot have any at once is left for the next batch unless it is the first, which
        waits: a batch that waited with memory in its hands could wait for itself. Says whether one was.
        """
        while len(boarded) < tier.config.max_batch and (flight := self._next(tier)) is not None:
            boarded.append(flight)
            if len(boarded) == 1:
                flight.slot = self._staging_slot(flight)
            elif self._is_wanted(flight):
                # Not from under the hands of those that wait for it.
                flight.slot = None if self._in_line else self._allocate(flight)
                if flight.slot is None:
                    with self._changed:
                        self._waiting[tier.bit].appendleft(boarded.pop())
                    return True
            if flight.slot is None:
                self._refuse(boarded.pop())
        return False

    def _next(self, tier: Tier) -> _Flight | None:
        with self._changed:
            waiting = self._waiting[tier.bit]
            return waiting.popleft() if waiting else None

    def _arrived(self, flight: _Flight, arrival: Arrival) -> None:
        """End one load by how its block arrived."""
        tier, key = flight.tier, flight.record.key
        is_over = flight.record.hard_ms <= self._clock.wall_ms()
        if arrival.outcome is Read.DONE and not is_over and not self._index.is_quarantined(key):
            self._report(flight, arrival)
            self._finish(flight, flight.slot)
            return
        self._placement.note_bad(tier, key, arrival.outcome)
        if arrival.outcome is Read.REFUSED:
            tier.counters.add(Count.REFUSED_LOADS)
        self._finish(flight, None)

    def _refuse(self, flight: _Flight) -> None:
        flight.tier.counters.add(Count.REFUSED_LOADS)
        self._finish(flight, None)

    def _report(self, flight: _Flight, arrival: Arrival) -> None:
        if self._on_transfer is None:
            return
        transfer = Transfer(
            flight.tier.name, flight.began_s, self._clock.monotonic_s(), arrival.stored_bytes,
            flight.record.raw_bytes, arrival.decode_s,
        )  # fmt: skip
        with suppress(Exception):  # whoever listens is not part of the load
            self._on_transfer(transfer)

    def _finish(self, flight: _Flight, arrived: Slot | None) -> None:
        """End a load, with the block in ``arrived`` or as a miss, which frees its memory."""
        with self._changed:
            self._flights.pop(flight.record.key, None)
        if arrived is None:
            if flight.slot is not None:
                flight.slot.free()
                self._wake()
            self._index.unhold([flight.record])
            flight.load.finish(None)
            return
        data, give_back = arrived.view, self._keep(flight, arrived)
        flight.load.finish(
            lambda n: SharedBytes(data, give_back, tier=flight.tier.name, num_readers=n, slot=arrived)
        )

    def _keep(self, flight: _Flight, slot: Slot) -> OnDone:
        """Promote what was loaded if memory has room; returns how its bytes are given back."""
        record, memory = flight.record, self._placement.memory
        if memory is None or not self._is_wanted_in(memory, record):
            return lambda: self._give_back(record, slot)
        room = self._placement.make_room(memory, record)
        if flight.landed.checksum is None and self._audit.selects(record.key):
            flight.landed.checksum = checksum(slot.view)
        kept = None if room is None else self._placement.keep(memory, flight.landed, room, slot)
        if kept is None:
            return lambda: self._give_back(record, slot)
        memory.counters.add(Count.PROMOTIONS)
        self._index.unhold([record])
        return kept.give_back

    def _is_wanted_in(self, memory: Tier, record: Record) -> bool:
        has_ended = self._index.has_ended(memory.bit, record, self._clock.wall_ms())
        return not has_ended and memory.admits(record.block_tokens, record)

    def _give_back(self, record: Record, slot: Slot) -> None:
        slot.free()
        self._index.unhold([record])
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _allocate(self, flight: _Flight) -> Slot | None:
        return self._room.allocate(flight.record)

    def _is_wanted(self, flight: _Flight) -> bool:
        return not flight.tier.pool.is_closing and flight.load.is_wanted()

    def _staging_slot(self, flight: _Flight) -> Slot | None:
        """Return memory to land in, waiting in line while other loads use it all; ``None``: none in time."""
        ends_at_s = self._clock.monotonic_s() + _STAGING_WAIT_S
        self._in_line.append(flight)
        try:
            while self._is_wanted(flight):
                is_first = self._in_line[0] is flight
                slot = self._allocate(flight) if is_first else None
                if slot is not None or self._clock.monotonic_s() >= ends_at_s:
                    return slot
                memory = self._placement.memory
                if memory is None or not is_first or not self._room.make_way(memory, flight.record):
                    with self._changed:
                        self._changed.wait(0.01)
            return None
        finally:
            self._in_line.remove(flight)
