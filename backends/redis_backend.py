"""The Redis or Valkey tier: frames in a server that other processes, and other machines, share."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from threading import Lock

from backends import redis_layout as layout
from backends.redis_address import RedisAddress
from backends.redis_amend import amend
from backends.redis_connections import Connections
from backends.redis_errors import ProtocolError, RefusedError, ours
from backends.redis_facts import server_facts
from backends.redis_manifests import Manifests
from backends.redis_wire import Wire
from kvstore.clock import Clock
from kvstore.errors import BackendError, FrameError
from kvstore.frame import HEADER_BYTES, Header
from kvstore.seams import BackendStats, HeaderChange, Want

_WINDOW_BYTES = 4 << 20
_WINDOW_BLOCKS = 256
_MOST_ASKED_KEYS = 1024
_REMEMBERED_HEADERS = 4096
_STORED_BYTES_AT = slice(16, 24)


class RedisBackend:
    """Keeps frames in the server at ``address``; see ``redis_layout`` for the keys.

    A frame is written in one transaction and read by one command, so it is seen whole or not at
    all, also while others write it. Nothing is connected before it is needed: a server that is
    gone is a fault of each call until it is back. ``clock`` tells whether a frame has expired; the
    server's own clock removes it.
    """

    def __init__(self, address: RedisAddress, clock: Clock | None = None) -> None:
        self._address = address
        self._clock = clock or Clock()
        self._connections = Connections(address)
        self._manifests = Manifests(self._connections)
        self._written = _Written()
        # Agents ask for the same prefixes again and again, and a header takes long to read.
        self._unpacked = lru_cache(_REMEMBERED_HEADERS)(self._unpack)

    def get_into(self, key: bytes, header: memoryview, payload: memoryview) -> int | None:
        (length,) = self.get_each([Want(key, header, payload)])
        return length

    def get_each(self, wants: Sequence[Want]) -> Iterator[int | None]:
        """Ask for some frames ahead of those being read, not so many that the server piles them up."""
        if not wants:
            return
        with self._connections.lend("get") as wire:
            ahead: deque[int] = deque()
            num_asked = 0
            for want in wants:
                while num_asked < len(wants) and _may_ask(ahead, len(wants[num_asked].payload)):
                    asked = wants[num_asked]
                    wire.send([layout.fetch(asked.key, layout.num_parts(len(asked.payload)))])
                    ahead.append(len(asked.payload))
                    num_asked += 1
                length = self._receive(wire, want)
                ahead.popleft()
                yield length

    def resident(self, keys: Sequence[bytes]) -> Sequence[Header | None]:
        found: list[Header | None] = []
        if not keys:
            return found
        now_ms, unpacked = self._clock.wall_ms(), self._unpacked
        with self._connections.lend("lookup") as wire:
            for start in range(0, len(keys), _MOST_ASKED_KEYS):
                some = keys[start : start + _MOST_ASKED_KEYS]
                wire.send([layout.fetch_headers(some)])
                for key, packed in zip(some, wire.replies(len(some)), strict=True):
                    is_one = isinstance(packed, bytes) and len(packed) == HEADER_BYTES
                    header, at_ms = unpacked(packed) if is_one else (None, 0)
                    is_usable = header and header.key == key and (not at_ms or at_ms > now_ms)
                    found.append(header if is_usable else None)
        return found

    def put(self, key: bytes, header: memoryview, payload: memoryview) -> None:
        facts = Header.unpack(header)
        pieces = layout.store(key, header, payload, facts.raw_bytes, facts.expiry.at_ms)
        num_replies = layout.num_replies(len(payload), facts.raw_bytes)
        try:
            with self._connections.lend("put") as wire:
                wire.send(pieces)
                refusal = _transacted(wire, num_replies)
        except BackendError:
            self._written.forget(key)
            raise
        if refusal is None:
            self._written.note(key, len(payload))
            return
        # Nothing was written, and what was there before is not what the caller thinks it is.
        with suppress(BackendError):
            self.delete(key)
        raise ours("put", refusal)

    def amend(self, key: bytes, change: HeaderChange) -> bool:
        with self._connections.lend("amend") as wire:
            return amend(wire, key, change)

    def delete(self, key: bytes) -> None:
        with self._connections.lend("delete") as wire:
            wire.send([layout.remove(key, self._written.most_parts)])
            wire.status()
        self._written.forget(key)

    def footprint(self, payload_bytes: int) -> int:
        return layout.memory_bytes(payload_bytes)

    def recover(self) -> Iterable[Header]:
        """Name nothing: what others have stored is asked for, prompt by prompt (``resident``)."""
        return ()

    def put_manifest(self, namespace: bytes, manifest: str) -> None:
        self._manifests.put(namespace, manifest)

    def manifests(self) -> Iterable[str]:
        return self._manifests.read()

    def stats(self) -> BackendStats:
        """Return what this process has stored, and facts of the server; asks it, so it may block."""
        facts = {"server": str(self._address)}
        try:
            facts |= server_facts(self._connections)
        except BackendError as error:
            facts["problem"] = error.reason
        return BackendStats(self._written.occupied_bytes, facts)

    def close(self) -> None:
        self._connections.close()

    def _receive(self, wire: Wire, want: Want) -> int | None:
        """Read one frame; whatever comes instead of one is read to its end, and is a miss.

        What is left of a frame that lacks a part, as when the server has evicted it, is removed: its header
        would be found again by all who ask, and what they then read would be for nothing.
        """
        num_parts = layout.num_parts(len(want.payload))
        if wire.length(b"*") != 1 + num_parts:
            raise ProtocolError("more or less than was asked for")
        is_whole = wire.bulk(want.header) == HEADER_BYTES
        arrived = 0
        for _ in range(num_parts):
            free = want.payload[arrived:] if is_whole else want.payload[:0]
            num_bytes = wire.bulk(free) or 0
            is_whole = is_whole and num_bytes <= len(free)
            arrived += num_bytes
        is_usable, stored_bytes = is_whole and self._is_alive(want.header), _stored_bytes(want.header)
        if is_usable and arrived == stored_bytes:
            self._written.note_size(arrived)
            return arrived
        self._written.forget(want.key)
        if is_usable and arrived < stored_bytes <= len(want.payload):
            self._written.note_size(stored_bytes)
            with suppress(BackendError):
                self.delete(want.key)
        return None

    def _unpack(self, packed: bytes) -> tuple[Header | None, int]:
        """Return a header and when it ends (epoch milliseconds), as far as it can be read."""
        try:
            header = Header.unpack(packed)
        except FrameError:
            return None, 0
        self._written.note_size(header.stored_bytes)
        return header, header.expiry.at_ms

    def _is_alive(self, header: memoryview) -> bool:
        """Whether the frame's time is not over; one that cannot be read is for the store to refuse."""
        try:
            at_ms = Header.unpack(header).expiry.at_ms
        except FrameError:
            return True
        return not at_ms or at_ms > self._clock.wall_ms()


class _Written:
    """What this process has stored and not seen go, and the largest block it knows of. Thread-safe."""

    def __init__(self) -> None:
        self._bytes: dict[bytes, int] = {}
        self._occupied_bytes = 0
        self._most_parts = 1
        self._lock = Lock()

    @property
    def most_parts(self) -> int:
        """As many parts as any block has that this process stored, read or was told of."""
        return self._most_parts

    @property
    def occupied_bytes(self) -> int:
        """The memory of the blocks this process has stored, as the server's may be."""
        return self._occupied_bytes

    def note(self, key: bytes, payload_bytes: int) -> None:
        """Count a block that was stored."""
        taken = layout.memory_bytes(payload_bytes)
        with self._lock:
            self._occupied_bytes += taken - self._bytes.pop(key, 0)
            self._bytes[key] = taken
        self.note_size(payload_bytes)

    def note_size(self, payload_bytes: int) -> None:
        """Remember that blocks may be as large as that."""
        count = layout.num_parts(payload_bytes)
        if self._most_parts < count <= layout.MOST_PARTS:
            with self._lock:
                self._most_parts = max(self._most_parts, count)

    def forget(self, key: bytes) -> None:
        """Count a block no more."""
        with self._lock:
            self._occupied_bytes -= self._bytes.pop(key, 0)


def _may_ask(ahead: deque[int], payload_bytes: int) -> bool:
    return not ahead or (sum(ahead) + payload_bytes <= _WINDOW_BYTES and len(ahead) < _WINDOW_BLOCKS)


def _stored_bytes(header: memoryview) -> int:
    return int.from_bytes(header[_STORED_BYTES_AT], "little")


def _transacted(wire: Wire, num_replies: int) -> RefusedError | None:
    """Read the replies of a transaction to the last, and return what was refused in it first."""
    refusal = None
    for _ in range(num_replies):
        try:
            wire.status()
        except RefusedError as error:
            refusal = refusal or error
    try:
        num_results = wire.length(b"*")
    except RefusedError as error:
        return refusal or error
    for _ in range(num_results):
        try:
            wire.status()
        except RefusedError as error:
            refusal = refusal or error
    return refusal
