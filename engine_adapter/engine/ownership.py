"""Who provides each block of a prompt: it is ready, a load brings it, or it is computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from kvstore.errors import LeaseExpiredError, StoreClosedError
from kvstore.leases import Hit
from kvstore.loading import LoadedBlock, Ticket
from kvstore.store import TieredStore


class Owner(Enum):
    """A wanted block has exactly one."""

    READY = "ready"
    LOAD = "load"
    COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class Loads:
    """How loads are started: through ``store``, ``window`` at a time, each with a deadline."""

    store: TieredStore
    window: int
    deadline_s: float
    on_done: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Flight:
    ticket: Ticket
    deadline_s: float


class Ownership:
    """The owners of a prompt's whole blocks, and the loads on their way.

    ::

        block      0      1      2      3       4      5
        owner    READY  READY  LOAD  COMPUTE  LOAD  COMPUTE
                                ^ computing waits here, or takes over when the load fails

    A block leaves LOAD once: to READY with its bytes, or to COMPUTE when its load missed, passed
    its deadline or was given up. What arrives after that is discarded by the store.
    """

    def __init__(self, num_blocks: int = 0) -> None:
        """All blocks begin as owned by computing."""
        self._owners = [Owner.COMPUTE] * num_blocks
        self._loads: Loads | None = None
        self._hit: Hit | None = None
        self._queue: deque[int] = deque()
        self._flights: dict[int, _Flight] = {}
        self._tiers: dict[int, str] = {}
        self.num_taken_over = 0

    def load(self, indices: Iterable[int], hit: Hit, loads: Loads) -> None:
        """Let loads through ``hit`` bring these blocks; the lease is this object's from here on."""
        self._hit, self._loads = hit, loads
        for index in indices:
            self._owners[index] = Owner.LOAD
            self._queue.append(index)
        self._release_when_done()

    def owner(self, index: int) -> Owner:
        """Return the owner of block ``index``; what is no whole block of the prompt is computed."""
        return self._owners[index] if index < len(self._owners) else Owner.COMPUTE

    def tier(self, index: int) -> str:
        """Return where a ready block came from."""
        return self._tiers[index]

    @property
    def num_loading(self) -> int:
        """Blocks whose loads are queued or on their way."""
        return len(self._queue) + len(self._flights)

    @property
    def next_deadline_s(self) -> float | None:
        """When the first load on its way is given up; ``None`` without any."""
        return min((flight.deadline_s for flight in self._flights.values()), default=None)

    def make_ready(self, index: int, tier: str) -> None:
        """Block ``index`` is there, from ``tier``; a load still on its way is given up."""
        self._leave(index)
        self._owners[index] = Owner.READY
        self._tiers[index] = tier

    def arrivals(self, now_s: float) -> Iterator[tuple[int, LoadedBlock]]:
        """Start loads as the window allows, then yield those that arrived, the caller's to release.

        Blocks whose load missed or is late go over to computing. A late load takes those not yet
        started with it: they would wait for the same tier.
        """
        self._start(now_s)
        for index, flight in list(self._flights.items()):
            if flight.ticket.done():
                del self._flights[index]
                loaded = flight.ticket.take()
                if loaded is None:
                    self._take_over(index)
                else:
                    yield index, loaded
            elif now_s >= flight.deadline_s:
                self._take_over(index)
                self._give_up_queue()
        self._release_when_done()

    def close(self) -> None:
        """Give up all loads and the lease; blocks not ready go over to computing. Idempotent."""
        for index in (*self._flights, *self._queue):
            self._leave(index)
            self._owners[index] = Owner.COMPUTE
        self._release_when_done()

    def _start(self, now_s: float) -> None:
        while self._queue and self._hit and self._loads and len(self._flights) < self._loads.window:
            index, deadline_s = self._queue[0], now_s + self._loads.deadline_s
            try:
                ticket = self._loads.store.load(self._hit, index, deadline_s, self._loads.on_done)
            except (LeaseExpiredError, StoreClosedError):
                self._give_up_queue()
                return
            self._queue.popleft()
            self._flights[index] = _Flight(ticket, deadline_s)

    def _take_over(self, index: int) -> None:
        self._leave(index)
        self._owners[index] = Owner.COMPUTE
        self.num_taken_over += 1

    def _give_up_queue(self) -> None:
        while self._queue:
            self._take_over(self._queue[0])

    def _leave(self, index: int) -> None:
        if flight := self._flights.pop(index, None):
            flight.ticket.abandon()
        if index in self._queue:
            self._queue.remove(index)

    def _release_when_done(self) -> None:
        if self._hit is not None and not self.num_loading:
            self._hit.release()
            self._hit = None
