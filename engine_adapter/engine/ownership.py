"""Who provides each block of a prompt: it is ready, a load brings it, or it is computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from engine_adapter.engine.costs import CostBook
from kvstore.clock import Clock
from kvstore.errors import LeaseExpiredError, StoreClosedError
from kvstore.leases import Hit
from kvstore.loading import LoadedBlock, Ticket
from kvstore.store import TieredStore
from kvstore.tier import DEVICE
from policies.planning import READY, Choice


class Owner(Enum):
    """A wanted block has exactly one."""

    READY = "ready"
    LOAD = "load"
    COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class Loads:
    """How loads are started: through ``store``, as many as ``costs`` has room for, with a deadline each."""

    store: TieredStore
    costs: CostBook
    clock: Clock
    deadline_s: float
    on_done: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Flight:
    ticket: Ticket
    tier: str
    deadline_s: float


class Ownership:
    """The owners of a prompt's whole blocks, and the loads on their way.

    ::

        block      0      1       2        3       4      5
        owner    READY  READY  COMPUTE  COMPUTE  LOAD   LOAD
                               ═══════>               <═════
        loads                            (probe) on way  on way

    A plan moves blocks between LOAD and COMPUTE until their bytes are there or computing reaches them:
    whichever comes first makes a block READY, and what arrives after that is discarded by the store.
    A block whose load missed or passed its deadline is not asked for again. Used by the engine's thread
    alone.
    """

    def __init__(self, num_blocks: int = 0, loads: Loads | None = None) -> None:
        """All blocks begin as owned by computing; without ``loads`` they stay it."""
        self._owners = [Owner.COMPUTE] * num_blocks
        self._sources: list[str | None] = [None] * num_blocks
        self._ready_from: dict[int, str] = {}
        self._loads = loads
        self._hit: Hit | None = None
        self._wanted: list[int] = []
        self._probes: list[int] = []
        self._flights: dict[int, _Flight] = {}
        self._barred: set[int] = set()  # a load has failed, or computing has begun
        self.num_taken_over = 0

    def offer(self, hit: Hit) -> None:
        """Let blocks that are not ready be loaded through ``hit``; its lease is this object's from now on."""
        if self._hit is not None:
            self._hit.release()
        self._hit = hit
        for index, tier in enumerate(hit.tiers):
            if index in self._flights:
                continue
            is_open = self._owners[index] is not Owner.READY and index not in self._barred
            self._sources[index] = tier if is_open and tier != DEVICE else None
            if self._sources[index] is None:
                self._leave_to_computing(index)

    @property
    def tiers(self) -> Sequence[str | None]:
        """Where each block can be loaded from: a tier, ``READY``, or ``None``."""
        return [
            READY if owner is Owner.READY else source
            for owner, source in zip(self._owners, self._sources, strict=True)
        ]

    @property
    def in_flight(self) -> frozenset[int]:
        """The blocks whose loads are on their way."""
        return frozenset(self._flights)

    @property
    def num_loading(self) -> int:
        """Blocks whose loads are wanted or on their way."""
        return len(self._wanted) + len(self._probes) + len(self._flights)

    @property
    def num_wanted(self) -> Counter[str]:
        """How many blocks each tier is still to be asked for."""
        return Counter(tier for index in self._wanted if (tier := self._sources[index]) is not None)

    @property
    def lease_ends_s(self) -> float | None:
        """When the hit through which blocks are loaded is over; ``None`` without one."""
        return None if self._hit is None else self._hit.deadline_s

    @property
    def next_deadline_s(self) -> float | None:
        """When the first load on its way is given up; ``None`` without any."""
        return min((flight.deadline_s for flight in self._flights.values()), default=None)

    def owner(self, index: int) -> Owner:
        """Return the owner of block ``index``; what is no whole block of the prompt is computed."""
        return self._owners[index] if index < len(self._owners) else Owner.COMPUTE

    def tier(self, index: int) -> str:
        """Return where a ready block came from."""
        return self._ready_from[index]

    def is_open(self, first: int) -> bool:
        """Say whether any block from ``first`` on can still be loaded."""
        return any(
            source is not None and owner is not Owner.READY
            for source, owner in zip(self._sources[first:], self._owners[first:], strict=True)
        )

    def follow(self, choices: Sequence[Choice], probes: Container[int], first: int) -> None:
        """Let a plan decide about the blocks from ``first`` on that are not ready.

        A load that is on its way goes on, whatever the plan says.
        """
        self._wanted = []
        for index in range(first, len(self._owners)):
            if self._owners[index] is Owner.READY:
                continue
            is_loaded = choices[index] is Choice.LOAD and self._sources[index] is not None
            self._owners[index] = Owner.LOAD if is_loaded else Owner.COMPUTE
            if is_loaded and index not in self._flights:
                self._wanted.append(index)
        self._probes = [
            index for index in range(first, len(self._owners)) if index in probes and self._is_idle(index)
        ]

    def start(self) -> None:
        """Ask for wanted blocks, the last first, and for probes, while their tiers have room."""
        if self._loads is None:
            return
        for queue in (self._wanted, self._probes):
            full = set[str]()
            for index in reversed(list(queue)):
                tier = self._sources[index]
                if tier is None or tier in full:
                    continue
                if self._loads.costs.has_room(tier):
                    queue.remove(index)
                    self._start(self._loads, index, tier)
                else:
                    full.add(tier)

    def arrivals(self, now_s: float) -> Iterator[tuple[int, LoadedBlock]]:
        """Yield the blocks whose loads have arrived, the caller's to release.

        ``make_ready`` or ``refuse`` must follow for each, before the next.
        Blocks whose load missed or is late go over to computing. A late load takes those not yet
        started with it: they would wait for the same tier.
        """
        for index, flight in list(self._flights.items()):
            if flight.ticket.done():
                self._land(index)
                loaded = flight.ticket.take()
                if loaded is None:
                    self._fail(index)
                else:
                    yield index, loaded
            elif now_s >= flight.deadline_s:
                self._abandon(index)
                self._fail(index)
                for queued in [held for held in self._wanted if self._sources[held] == flight.tier]:
                    self._fail(queued)

    def make_ready(self, index: int, tier: str) -> None:
        """Block ``index`` is there, from ``tier``; a load still on its way is given up."""
        self._abandon(index)
        self._forget(index)
        self._owners[index] = Owner.READY
        self._ready_from[index] = tier

    def refuse(self, index: int) -> None:
        """Block ``index`` has arrived and cannot be used: computing takes it over."""
        self._fail(index)

    def begin_computing(self, first: int, end: int) -> None:
        """Give up the loads of blocks ``first`` to ``end``, which are computed now."""
        for index in range(first, min(end, len(self._owners))):
            self._abandon(index)
            self._leave_to_computing(index)
            self._barred.add(index)

    def close(self) -> None:
        """Give up all loads and the lease; blocks not ready go over to computing. Idempotent."""
        if self._hit is None and not self._flights:
            return
        self.begin_computing(0, len(self._owners))
        if self._hit is not None:
            self._hit.release()
            self._hit = None

    def _start(self, loads: Loads, index: int, tier: str) -> None:
        now_s = loads.clock.monotonic_s()
        deadline_s = now_s + loads.deadline_s
        fault_s = min(deadline_s, now_s + loads.costs.overdue_s(tier, now_s))
        if self._hit is None:
            self._fail(index)
            return
        try:
            ticket = loads.store.load(self._hit, index, fault_s, loads.on_done)
        except (LeaseExpiredError, StoreClosedError):
            self._fail(index)
            return
        loads.costs.asked(tier, ticket, now_s)
        self._flights[index] = _Flight(ticket, tier, deadline_s)

    def _land(self, index: int) -> None:
        flight = self._flights.pop(index)
        if self._loads is not None:
            self._loads.costs.ended(flight.tier, flight.ticket)

    def _abandon(self, index: int) -> None:
        if flight := self._flights.pop(index, None):
            flight.ticket.abandon()
            if self._loads is not None:
                self._loads.costs.given_up(flight.tier, flight.ticket, self._loads.clock.monotonic_s())

    def _fail(self, index: int) -> None:
        """Leave a block that cannot be loaded to computing, for good."""
        self._barred.add(index)
        if self._leave_to_computing(index):
            self.num_taken_over += 1

    def _leave_to_computing(self, index: int) -> bool:
        """Nothing will bring this block; says whether a load was to."""
        self._forget(index)
        self._sources[index] = None
        is_awaited = self._owners[index] is Owner.LOAD
        if is_awaited:
            self._owners[index] = Owner.COMPUTE
        return is_awaited

    def _is_idle(self, index: int) -> bool:
        """Say whether a block is computed and could be asked for beside that."""
        is_held = self._sources[index] is not None and index not in self._flights
        return is_held and self._owners[index] is Owner.COMPUTE

    def _forget(self, index: int) -> None:
        for queue in (self._wanted, self._probes):
            if index in queue:
                queue.remove(index)
