"""The host tier: blocks in slots of an arena, each one memmove away."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from threading import Lock

from kvstore.arena import Arena, Slot, slot_stride
from kvstore.errors import BackendError, InvariantError, OutOfSpaceError
from kvstore.frame import Header
from kvstore.seams import BackendStats, Loan
from kvstore.slab import Slab

NAME = "host"


@dataclass(slots=True, eq=False)
class _Entry:
    """A stored block. Its slot is freed by whoever sees it removed with no reader left.

    ``header`` is empty for a slot that was taken over: it is lent, never read as a frame.
    """

    header: bytes
    slot: Slot
    num_readers: int = 0
    removed: bool = False


class HostBackend:
    """Keeps frames in the slots of ``arena``, which stays the caller's and may be shared.

    Headers lie beside the slots, so that a payload is page-aligned and a footprint is one stride.
    Beyond ``Backend``, slots are taken over and lent without a copy (``kvstore.seams.Lending``).
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._entries: dict[bytes, _Entry] = {}
        self._occupied_bytes = 0
        self._closed = False
        self._lock = Lock()

    def get_into(self, key: bytes, header: memoryview, payload: memoryview) -> int | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or not entry.header or len(entry.slot.view) > len(payload):
                return None
            entry.num_readers += 1
        try:
            data = entry.slot.view
            header[:] = entry.header
            payload[: len(data)] = data
            return len(data)
        finally:
            self._finish_reading(entry)

    def put(self, key: bytes, header: memoryview, payload: memoryview) -> None:
        slot = self._arena.allocate(len(payload))
        if slot is None:
            self.delete(key)
            raise OutOfSpaceError(NAME, "put", f"the arena has no slot for {len(payload)} bytes")
        slot.view[:] = payload
        if not self._keep(key, _Entry(bytes(header), slot)):
            slot.free()
            raise BackendError(NAME, "put", "the backend is closed")

    def adopt(self, key: bytes, slot: Slot) -> Loan | None:
        entry = _Entry(b"", slot, num_readers=1)
        return self._loan(entry) if self._keep(key, entry) else None

    def lend(self, key: bytes) -> Loan | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            entry.num_readers += 1
        return self._loan(entry)

    def where(self, key: bytes) -> Slot | None:
        with self._lock:
            entry = self._entries.get(key)
            return None if entry is None else entry.slot

    def slabs_like(self, slab: Slab) -> list[list[bytes]]:
        blocks = defaultdict[Slab, list[bytes]](list)
        with self._lock:
            for key, entry in self._entries.items():
                held = entry.slot.slab
                if held is not None and held.is_for(slab.stride_bytes, slab.owner):
                    blocks[held].append(key)
        whole = [keys for held, keys in blocks.items() if len(keys) * held.stride_bytes == held.used_bytes]
        return sorted(whole, key=len)

    def surrender(self, key: bytes) -> Slot | None:
        with self._lock:
            return self._remove(key)

    def delete(self, key: bytes) -> None:
        with self._lock:
            unused = self._remove(key)
        if unused:
            unused.free()

    def footprint(self, payload_bytes: int) -> int:
        return slot_stride(payload_bytes)

    def recover(self) -> Iterable[Header]:
        return ()

    def put_manifest(self, namespace: bytes, manifest: str) -> None:
        """Do nothing: this medium does not outlive the process."""

    def manifests(self) -> Iterable[str]:
        return ()

    def stats(self) -> BackendStats:
        facts = {
            "mapped_bytes": str(self._arena.mapped_bytes),
            "budget_bytes": str(self._arena.budget_bytes),
        }
        return BackendStats(self._occupied_bytes, facts)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            unused = [self._remove(key) for key in list(self._entries)]
        for slot in unused:
            if slot:
                slot.free()

    def check(self) -> None:
        """Raise ``InvariantError`` when the occupied bytes are not the sum of the slots held."""
        with self._lock:
            held = sum(entry.slot.stride_bytes for entry in self._entries.values())
            if held != self._occupied_bytes or any(entry.removed for entry in self._entries.values()):
                raise InvariantError(f"host: {self._occupied_bytes} bytes are charged for {held} held")

    def _loan(self, entry: _Entry) -> Loan:
        return Loan(entry.slot.view, partial(self._finish_reading, entry), entry.slot)

    def _keep(self, key: bytes, entry: _Entry) -> bool:
        """Make ``entry`` the block of ``key``, replacing what was there; ``False``: we are closed."""
        with self._lock:
            if self._closed:
                return False
            unused = self._remove(key)
            self._entries[key] = entry
            self._occupied_bytes += entry.slot.stride_bytes
        if unused:
            unused.free()
        return True

    def _remove(self, key: bytes) -> Slot | None:
        """Forget ``key``; returns its slot when nobody reads it, to be freed without the lock."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._occupied_bytes -= entry.slot.stride_bytes
        entry.removed = True
        return None if entry.num_readers else entry.slot

    def _finish_reading(self, entry: _Entry) -> None:
        with self._lock:
            entry.num_readers -= 1
            is_last = entry.removed and not entry.num_readers
        if is_last:
            entry.slot.free()
