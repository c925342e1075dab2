"""What a client holds of a server's store: leases on blocks, and memory for new ones."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from kvstore.errors import ChannelError
from kvstore.leases import Hit
from kvstore.remote import wire
from kvstore.remote.link import Link
from kvstore.remote.pending import Pending
from kvstore.remote.wire import Kind, Place


class RemoteHit(Hit):
    """A lookup's answer: each block's fastest tier, and where it lies in the server's memory."""

    __slots__ = ("lease", "link", "places")

    def __init__(
        self,
        keys: Sequence[bytes],
        tiers: tuple[str | None, ...],
        places: Sequence[Place],
        deadline_s: float,
        lease: int,
        link: Link | None,
    ) -> None:
        """``lease`` is 0, and ``link`` may be ``None``, where nothing is held."""
        super().__init__(keys, tiers, (), deadline_s, lambda _records: self._give_back())
        self.places = places
        self.lease = lease
        self.link = link

    def _give_back(self) -> None:
        if self.link is not None and self.lease:
            with suppress(ChannelError):
                self.link.say(Kind.RELEASE, wire.NUMBER.pack(self.lease))


class RemoteReservation:
    """Memory for one block, the caller's until ``commit`` or ``abort``; see ``Reservation``."""

    __slots__ = ("_link", "_number", "_pending", "_start", "view")

    def __init__(self, link: Link, number: int, start: int, nbytes: int, pending: Pending) -> None:
        self.view = link.staging.memory[start : start + nbytes]
        self._link = link
        self._number = number
        self._start = start
        self._pending = pending

    def commit(self) -> None:
        """Hand the block over: the server copies it behind, and this client finds it from now on."""
        self.view = memoryview(b"")
        self._pending.commit(self._link, self._number, self._start)

    def abort(self) -> None:
        """Give the memory back; nothing was stored."""
        self.view = memoryview(b"")
        with suppress(ChannelError):
            self._link.say(Kind.ABORT, wire.NUMBER.pack(self._number))
        self._link.staging.give_back(self._start)
