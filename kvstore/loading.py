"""Loads in flight: shared bytes, and the tickets through which callers wait for them."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock

from kvstore.arena import Slot
from kvstore.errors import InvariantError
from kvstore.frame import copy

GiveBack = Callable[[], None]
OnDone = Callable[[], None]


class SharedBytes:
    """Verified bytes of one block with several readers, given back when the last one lets go."""

    __slots__ = ("_give_back", "_lock", "_num_readers", "data", "slot", "tier")

    def __init__(
        self,
        data: memoryview,
        give_back: GiveBack,
        *,
        tier: str = "",
        num_readers: int = 1,
        slot: Slot | None = None,
    ) -> None:
        self.data = data
        self.tier = tier
        self.slot = slot
        self._give_back = give_back
        self._num_readers = num_readers
        self._lock = Lock()

    def release(self) -> None:
        """One reader lets go."""
        with self._lock:
            self._num_readers -= 1
            is_last = self._num_readers == 0
        if is_last:
            self._give_back()


class LoadedBlock:
    """A block that has arrived: ``data`` is valid, and must not be written to, until ``release``."""

    __slots__ = ("_shared",)

    def __init__(self, shared: SharedBytes) -> None:
        self._shared: SharedBytes | None = shared

    @property
    def data(self) -> memoryview:
        """The block's bytes at rest, verified. Raises ``ValueError`` after ``release``."""
        return self._held.data

    @property
    def tier(self) -> str:
        """The name of the tier it came from."""
        return self._held.tier

    @property
    def slot(self) -> Slot | None:
        """Where in an arena the bytes lie; ``None``: in other memory."""
        return self._held.slot

    def release(self) -> None:
        """Let go of the bytes; idempotent."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.release()

    @property
    def _held(self) -> SharedBytes:
        if self._shared is None:
            raise ValueError("the loaded block was released")
        return self._shared


class Load:
    """One transfer, shared by all who want the same block at the same time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_finished = False
        self._awaited: Event | None = None  # made by the first who blocks; most poll
        self._shared: SharedBytes | None = None
        self._tickets: set[Ticket] = set()

    def join(self, on_done: OnDone | None, on_abandoned: OnDone | None = None) -> Ticket | None:
        """Return a ticket for this load; ``None`` when it has finished already.

        ``on_done`` is called when the transfer reports, ``on_abandoned`` when the ticket is given
        up before that.
        """
        with self._lock:
            if self._is_finished:
                return None
            ticket = Ticket(self, on_done, on_abandoned)
            self._tickets.add(ticket)
            return ticket

    def finish(self, make_shared: Callable[[int], SharedBytes] | None) -> None:
        """Note that the transfer has reported: ``make_shared(number of readers)``; ``None``: a miss.

        With no reader left ``make_shared`` is called with 1 and its bytes go back at once; so they do
        when the transfer has reported before.
        """
        with self._lock:
            waiting = [] if self._is_finished else list(self._tickets)
            shared = None if make_shared is None else make_shared(max(1, len(waiting)))
            if not self._is_finished:
                self._shared = shared
                self._is_finished = True
            if self._awaited is not None:
                self._awaited.set()
        if shared is not None and not waiting:
            shared.release()
        for ticket in waiting:
            ticket.notify()

    def wait(self, timeout_s: float) -> bool:
        """Block until the transfer has reported, at most ``timeout_s``."""
        with self._lock:
            if self._is_finished:
                return True
            if self._awaited is None:
                self._awaited = Event()
        return self._awaited.wait(timeout_s)

    def is_wanted(self) -> bool:
        """Say whether anybody still waits for this load."""
        with self._lock:
            return bool(self._tickets)

    def is_finished(self) -> bool:
        """Say whether the transfer has reported."""
        return self._is_finished

    def collect(self, ticket: Ticket) -> SharedBytes | None:
        """Hand ``ticket`` its share, once; ``None`` for a miss or before the transfer has reported."""
        with self._lock:
            if not self._is_finished or ticket not in self._tickets:
                return None
            self._tickets.discard(ticket)
            return self._shared

    def leave(self, ticket: Ticket) -> bool:
        """Drop ``ticket``'s claim. Returns whether the transfer had not reported yet."""
        with self._lock:
            if ticket not in self._tickets:
                return False
            self._tickets.discard(ticket)
            is_pending = not self._is_finished
        if not is_pending and self._shared is not None:
            self._shared.release()
        return is_pending


class Ticket:
    """One caller's claim on a load. Whoever holds it must ``take`` or ``abandon`` it."""

    __slots__ = ("_load", "_on_abandoned", "_on_done")

    def __init__(self, load: Load, on_done: OnDone | None, on_abandoned: OnDone | None = None) -> None:
        self._load = load
        self._on_done = on_done
        self._on_abandoned = on_abandoned

    @classmethod
    def on(cls, load: Load, on_done: OnDone | None, on_abandoned: OnDone | None) -> Ticket:
        """Return the first ticket of a load that nobody else knows yet."""
        ticket = load.join(on_done, on_abandoned)
        if ticket is None:
            raise InvariantError("a new load has finished already")
        return ticket

    @classmethod
    def of(cls, shared: SharedBytes | None) -> Ticket:
        """Return a ticket of a load that has finished: with these bytes, or with a miss."""
        load = Load()
        ticket = cls.on(load, None, None)
        load.finish(None if shared is None else lambda _num_readers: shared)
        return ticket

    def done(self) -> bool:
        """Say whether the transfer has reported, well or not."""
        return self._load.is_finished()

    def wait(self, timeout_s: float) -> bool:
        """Block until ``done()``, at most ``timeout_s``; returns ``done()``."""
        return self._load.wait(timeout_s)

    def take(self) -> LoadedBlock | None:
        """Return the block, once, the caller's to release; ``None``: a miss, or not done yet."""
        shared = self._load.collect(self)
        return None if shared is None else LoadedBlock(shared)

    def read_into(self, out: memoryview, timeout_s: float) -> bool:
        """Wait for the block and copy it to ``out``; ``False``: a miss, late, or of another length."""
        if not self.wait(timeout_s):
            self.abandon()
            return False
        block = self.take()
        if block is None:
            return False
        is_same_size = len(block.data) == len(out)
        if is_same_size:
            copy(block.data, out)
        block.release()
        return is_same_size

    def abandon(self) -> None:
        """Give the load up; never blocks. Bytes that arrive later are discarded; idempotent."""
        if self._load.leave(self) and self._on_abandoned is not None:
            self._on_abandoned()

    def notify(self) -> None:
        """Tell the caller that the transfer has reported."""
        if self._on_done is not None:
            self._on_done()
