"""What a client waits for: loads, inquiries and stores of which the server tells the end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from threading import Event, Lock
from typing import NamedTuple

from kvstore.arena import Arena
from kvstore.errors import ChannelError
from kvstore.loading import Load, OnDone, SharedBytes, Ticket
from kvstore.remote import wire
from kvstore.remote.channel import Message
from kvstore.remote.link import Link
from kvstore.remote.wire import Kind, Place


class _Loading(NamedTuple):
    link: Link
    load: Load


class Inquired:
    """A question to media that the server asks; see ``Inquiry``."""

    def __init__(self, on_done: OnDone | None) -> None:
        self._on_done = on_done
        self._is_wanted = True
        self._answered = Event()

    def done(self) -> bool:
        """Say whether the media have answered, well or not."""
        return self._answered.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Block until ``done()``, at most ``timeout_s``; returns ``done()``."""
        return self._answered.wait(timeout_s)

    def abandon(self) -> None:
        """Give it up; never blocks."""
        self._is_wanted = False

    def end(self) -> None:
        """Note the end, and tell whoever waits."""
        self._answered.set()
        if self._is_wanted and self._on_done is not None:
            self._on_done()


class Pending:
    """Everything under way, by the number that the server tells its end under. Thread-safe."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._numbers = count(1)
        self._loads: dict[int, _Loading] = {}
        self._inquiries: dict[int, tuple[Link, Inquired]] = {}
        self._commits: dict[tuple[Link, int], int] = {}
        self._lock = Lock()

    def load(self, link: Link, lease: int, index: int, timeout_s: float, on_done: OnDone | None) -> Ticket:
        """Have the server load a leased block; the ticket is done when it has been copied here."""
        number, load = next(self._numbers), Load()
        ticket = Ticket.on(load, on_done, partial(self._give_up, number))
        with self._lock:
            self._loads[number] = _Loading(link, load)
        try:
            link.say(Kind.LOAD, wire.LOAD_ORDER.pack(lease, index, number, timeout_s))
        except ChannelError:
            self._finish(number, None)
        return ticket

    def inquire(
        self, link: Link, keys: Sequence[bytes], timeout_s: float, block_bytes: int, on_done: OnDone | None
    ) -> Inquired:
        """Have the server ask its media."""
        number, inquiry = next(self._numbers), Inquired(on_done)
        with self._lock:
            self._inquiries[number] = link, inquiry
        try:
            link.say(Kind.INQUIRE, wire.INQUIRY_ORDER.pack(number, timeout_s, block_bytes), b"".join(keys))
        except ChannelError:
            self._end_inquiry(number)
        return inquiry

    def commit(self, link: Link, number: int, start: int) -> None:
        """Have the server copy a block from the staging memory, which is given back when it has."""
        with self._lock:
            self._commits[link, number] = start
        try:
            link.say(Kind.COMMIT, wire.COMMITMENT.pack(number, start))
        except ChannelError:
            self._staged(link, number)

    def copy(self, link: Link, place: Place) -> SharedBytes | None:
        """Return a verified copy of a block in the server's memory; ``None``: it is gone, or no room here."""
        slot = self._arena.allocate(place.nbytes)
        if slot is None:
            return None
        try:
            is_whole = link.copy(place, slot.view)
        except ChannelError:
            is_whole = False
        if not is_whole:
            slot.free()
            return None
        return SharedBytes(slot.view, slot.free, tier=link.tiers[place.tier], slot=slot)

    def hear(self, link: Link, message: Message) -> None:
        """Take in what the server tells. Raises ``ChannelError`` for what makes no sense."""
        if message.kind == Kind.LOADED:
            number, is_there = wire.unpack(wire.ENDED, message.body)
            (place,) = wire.unpack_places(message.body[wire.ENDED.size :])
            self._finish(number, place if is_there else None)
        elif message.kind == Kind.INQUIRED:
            self._end_inquiry(*wire.unpack(wire.NUMBER, message.body))
        elif message.kind == Kind.STAGED:
            self._staged(link, *wire.unpack(wire.NUMBER, message.body))
        else:
            raise ChannelError(f"news of kind {message.kind} are not known")

    def lost(self, link: Link) -> None:
        """End what was under way over a connection that has ended: loads are misses."""
        with self._lock:
            loads = [number for number, loading in self._loads.items() if loading.link is link]
            inquiries = [number for number, (asked, _) in self._inquiries.items() if asked is link]
            commits = [number for lost, number in self._commits if lost is link]
        for number in loads:
            self._finish(number, None)
        for number in inquiries:
            self._end_inquiry(number)
        for number in commits:
            self._staged(link, number)

    def _finish(self, number: int, place: Place | None) -> None:
        with self._lock:
            loading = self._loads.pop(number, None)
        if loading is None:
            return
        shared = self.copy(loading.link, place) if place is not None else None
        if place is not None:
            self._let_go(loading.link, number)
        loading.load.finish(None if shared is None else lambda _num_readers: shared)

    def _give_up(self, number: int) -> None:
        with self._lock:
            loading = self._loads.pop(number, None)
        if loading is not None:
            self._let_go(loading.link, number)

    def _let_go(self, link: Link, number: int) -> None:
        try:
            link.say_aside(Kind.LET_GO, wire.NUMBER.pack(number))
        except ChannelError:
            return  # the server gives back what we held

    def _end_inquiry(self, number: int) -> None:
        with self._lock:
            _, inquiry = self._inquiries.pop(number, (None, None))
        if inquiry is not None:
            inquiry.end()

    def _staged(self, link: Link, number: int) -> None:
        with self._lock:
            start = self._commits.pop((link, number), None)
        if start is not None:
            link.staging.give_back(start)
