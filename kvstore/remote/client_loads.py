"""The loads of one client: a few under way at a time, and what has arrived until the client has copied it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import NamedTuple

from kvstore.errors import PrefixdError
from kvstore.frame import checksum
from kvstore.leases import Hit
from kvstore.loading import LoadedBlock, Ticket
from kvstore.remote.patience import patience_s
from kvstore.remote.places import place_of
from kvstore.remote.wire import NOWHERE, Place
from kvstore.store import TieredStore

_MOST_OPEN = 4096
_MOST_UNDER_WAY = 64
_LOADED_S = 60.0

Queue = Callable[[Callable[[], None]], None]
OnEnded = Callable[[int, Place], None]
"""Hears of each load's number and where its block lies now (``NOWHERE``: it is a miss), once."""


class _Order(NamedTuple):
    hit: Hit
    position: int
    ends_s: float


class _Loaded(NamedTuple):
    """A block that the client may copy, at most until ``ends_s``: it may never say that it has."""

    block: LoadedBlock
    ends_s: float


class ClientLoads:
    """Hands a client's loads to the store, ``most_under_way`` at a time, so that others' come between them.

    Thread-safe. ``queue`` has something done on another thread, where ``on_ended`` is called.
    """

    def __init__(
        self, store: TieredStore, queue: Queue, on_ended: OnEnded, most_under_way: int = _MOST_UNDER_WAY
    ) -> None:
        self._store = store
        self._queue = queue
        self._on_ended = on_ended
        self._most_under_way = most_under_way
        self._waiting: dict[int, _Order] = {}
        self._released: list[Hit] = []  # their loads have not all begun
        self._tickets: dict[int, Ticket] = {}
        self._loaded: dict[int, _Loaded] = {}
        self._lock = Lock()

    def begin(self, hit: Hit | None, index: int, number: int, timeout_s: float) -> None:
        """Load a leased block as soon as it is its turn; its end is told under ``number``."""
        with self._lock:
            num_open = len(self._waiting) + len(self._tickets) + len(self._loaded)
            is_new = number not in self._waiting and number not in self._tickets
            is_taken = hit is not None and index < len(hit.keys) and is_new and num_open < _MOST_OPEN
            if hit is not None and is_taken:
                self._waiting[number] = _Order(hit, index, self._store.now_s() + patience_s(timeout_s))
        if is_taken:
            self._start_some()
        else:
            self._queue(partial(self._on_ended, number, NOWHERE))

    def release(self, hit: Hit) -> None:
        """Give a lease back, as soon as all loads from it have begun."""
        with self._lock:
            is_needed = self._is_needed(hit)
            if is_needed:
                self._released.append(hit)
        if not is_needed:
            hit.release()

    def let_go(self, number: int) -> None:
        """Give a load up, or its bytes back."""
        with self._lock:
            is_waiting = self._waiting.pop(number, None) is not None
            ticket, loaded = self._tickets.pop(number, None), self._loaded.pop(number, None)
        if ticket is not None:
            ticket.abandon()
        if ticket is not None or is_waiting:
            self._start_some()
        if loaded is not None:
            loaded.block.release()

    def sweep(self, now_s: float) -> None:
        """Take back what the client should have copied by now."""
        with self._lock:
            uncopied = [number for number, loaded in self._loaded.items() if loaded.ends_s < now_s]
        for number in uncopied:
            self.let_go(number)

    def end(self) -> None:
        """Give everything up and back."""
        with self._lock:
            self._waiting.clear()
            released, self._released = self._released, []
            numbers = [*self._tickets, *self._loaded]
        for hit in released:
            hit.release()
        for number in numbers:
            self.let_go(number)

    def _is_needed(self, hit: Hit) -> bool:
        return any(order.hit is hit for order in self._waiting.values())

    def _start_some(self) -> None:
        """Begin loads whose turn it is, and give back leases that no other waits for."""
        while True:
            with self._lock:
                over = [hit for hit in self._released if not self._is_needed(hit)]
                self._released = [hit for hit in self._released if hit not in over]
                is_full = len(self._tickets) >= self._most_under_way
                number = None if is_full else next(iter(self._waiting), None)
                ticket = None if number is None else self._start(number, self._waiting.pop(number))
            for hit in over:
                hit.release()
            if number is None:
                return
            if ticket is None:
                self._queue(partial(self._on_ended, number, NOWHERE))
            elif ticket.done():
                self._queue(partial(self._arrived, number))

    def _start(self, number: int, order: _Order) -> Ticket | None:
        """Begin a load; ``None``: it is too late. The caller has the lock, so that its end comes later."""
        if self._store.now_s() >= order.ends_s:
            return None
        done = partial(self._queue, partial(self._arrived, number))
        try:
            ticket = self._store.load(order.hit, order.position, order.ends_s, done)
        except PrefixdError:  # its lease is over
            return None
        self._tickets[number] = ticket
        return ticket

    def _arrived(self, number: int) -> None:
        with self._lock:
            ticket = self._tickets.pop(number, None)
            block = None if ticket is None else ticket.take()
            if block is not None:
                self._loaded[number] = _Loaded(block, self._store.now_s() + _LOADED_S)
        if ticket is None:
            return
        place = NOWHERE if block is None or block.slot is None else self._place(block)
        if place == NOWHERE:
            self.let_go(number)
        self._on_ended(number, place)
        self._start_some()

    def _place(self, block: LoadedBlock) -> Place:
        tier = self._store.tier_names.index(block.tier)
        return place_of(tier, len(block.data), block.slot, checksum(block.data))
