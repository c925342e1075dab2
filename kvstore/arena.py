"""The host tier's memory: mapped slabs of equal page-aligned slots, within an exact byte budget.

::

    budget_bytes  |=========== slab ===========|=========== slab ===========|== small slab ==|  .  |
    slots         |  used  |  free  |  used  | |  used  |  used  |  used  | |  free  |       left over
                  '--- stride_bytes: whole pages, one size class per slab ---'

A slab belongs to the class of one slot size. A class keeps at most one empty slab, so that a
block that comes and goes does not map and unmap in turn; others are given back at once, and the
kept one as soon as another class needs its room.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from threading import Lock

from kvstore.errors import ConfigError, InvariantError
from kvstore.slab import Slab, Unlock, nothing_to_undo

PAGE_BYTES = mmap.PAGESIZE
DEFAULT_SLAB_BYTES = 32 * 1024 * 1024

LockPages = Callable[[memoryview], Unlock]

_NO_BYTES = memoryview(b"")


def slot_stride(nbytes: int) -> int:
    """Return the bytes that a slot for ``nbytes`` occupies: whole pages, at least one."""
    return -(-max(nbytes, 1) // PAGE_BYTES) * PAGE_BYTES


class Slot:
    """A page-aligned region of an arena, owned by whoever allocated it until ``free``.

    ``view`` has the length asked for, format ``B``, and is writable; its bytes are undefined at
    first. After ``free`` it is empty. A view taken from it earlier stays mapped as long as it is
    referenced, but its bytes then belong to somebody else.
    """

    __slots__ = ("arena", "offset", "slab", "stride_bytes", "view")

    def __init__(self, arena: Arena, slab: Slab, offset: int, nbytes: int) -> None:
        self.arena = arena
        self.slab: Slab | None = slab  # None: freed
        self.offset = offset
        self.stride_bytes = slab.stride_bytes
        self.view = slab.memory[offset : offset + nbytes]

    def free(self) -> None:
        """Give the region back. Raises ``InvariantError`` the second time."""
        self.arena.take_back(self)


class Arena:
    """Hands out slots of host memory, at most ``budget_bytes`` mapped at any time; thread-safe.

    ``lock_pages`` is called with each new slab and returns what undoes it (page-locking for a
    GPU); what it raises, ``allocate`` raises.
    """

    def __init__(
        self,
        budget_bytes: int,
        slab_bytes: int = DEFAULT_SLAB_BYTES,
        lock_pages: LockPages | None = None,
    ) -> None:
        if budget_bytes < 0 or slab_bytes <= 0:
            raise ConfigError("arena", f"budget {budget_bytes} and slab {slab_bytes} bytes must be positive")
        self.budget_bytes = budget_bytes
        self._slab_bytes = slab_bytes
        self._lock_pages = lock_pages or _leave_pageable
        self._slabs: set[Slab] = set()
        self._open: dict[int, dict[Slab, None]] = {}  # by stride: slabs with a free slot, in order of use
        self._empty: dict[int, Slab] = {}  # by stride: the one empty slab that is kept
        self._leaving: list[Slab] = []  # empty, still mapped and charged, about to be given back
        self._used_bytes = 0
        self._mapped_bytes = 0
        self._closed = False
        self._lock = Lock()  # held for bookkeeping only
        self._mapping = Lock()  # held while slabs are mapped or given back; taken before _lock

    @property
    def used_bytes(self) -> int:
        """Bytes of the slots that are allocated, by stride."""
        return self._used_bytes

    @property
    def mapped_bytes(self) -> int:
        """Bytes of all slabs, used or not; never more than the budget."""
        return self._mapped_bytes

    def allocate(self, nbytes: int) -> Slot | None:
        """Return a slot of ``nbytes``, or ``None`` when the budget (or the machine) has no room.

        About a microsecond; a new slab takes longer, most of it in ``lock_pages``.
        """
        stride = slot_stride(nbytes)
        with self._lock:
            slot = self._take(stride, nbytes)
        return slot or self._allocate_from_new_slab(stride, nbytes)

    def take_back(self, slot: Slot) -> None:
        """Make ``slot`` free again. Raises ``InvariantError`` when it is already."""
        with self._lock:
            slab, slot.slab = slot.slab, None
            if slab is None:
                raise InvariantError("a slot was freed twice")
            slot.view = _NO_BYTES
            if slab in self._slabs:
                self._put_back(slab, slot.offset)
            surplus = bool(self._leaving)
        if surplus:
            with self._mapping:
                self._give_back_one()

    def check(self) -> None:
        """Raise ``InvariantError`` when slabs, free slots and totals do not add up."""
        with self._mapping, self._lock:
            for slab in self._slabs:
                slab.check()
            open_slabs = {slab for slabs in self._open.values() for slab in slabs}
            _require(open_slabs == {slab for slab in self._slabs if slab.free}, "free slots out of reach")
            empty = {slab for slab in self._slabs if slab.is_empty}
            _require(empty == set(self._empty.values()), "an empty slab was not given back")
            _require(sum(slab.used_bytes for slab in self._slabs) == self._used_bytes, "used bytes")
            mapped = [*self._slabs, *self._leaving]
            _require(sum(slab.nbytes for slab in mapped) == self._mapped_bytes, "mapped bytes")
            _require(self._mapped_bytes <= self.budget_bytes, "more is mapped than the budget allows")

    def close(self) -> None:
        """Give all slabs back; idempotent. Views that are still referenced stay mapped until let go."""
        with self._mapping:
            with self._lock:
                self._closed = True
                slabs = [*self._slabs, *self._leaving]
                for holder in (self._slabs, self._open, self._empty, self._leaving):
                    holder.clear()
                self._used_bytes = self._mapped_bytes = 0
            for slab in slabs:
                slab.unlock()

    def _take(self, stride: int, nbytes: int) -> Slot | None:
        slabs = self._open.get(stride)
        if not slabs:
            return None
        slab = next(iter(slabs))
        if slab.is_empty:
            self._empty.pop(stride, None)
        offset = slab.free.pop()
        if not slab.free:
            del slabs[slab]
        self._used_bytes += stride
        return Slot(self, slab, offset, nbytes)

    def _allocate_from_new_slab(self, stride: int, nbytes: int) -> Slot | None:
        with self._mapping:
            with self._lock:  # somebody else may have mapped or freed meanwhile
                if slot := self._take(stride, nbytes):
                    return slot
            num_slots = self._make_room(stride)
            slab = self._map(stride, num_slots) if num_slots else None
            if slab is None:
                return None
            with self._lock:
                self._slabs.add(slab)
                self._mapped_bytes += slab.nbytes
                self._open.setdefault(stride, {})
                self._keep_empty(slab)  # a slot that was freed meanwhile may be taken before its own
                slot = self._take(stride, nbytes)
            if self._leaving:
                self._give_back_one()
            return slot

    def _make_room(self, stride: int) -> int:
        """Return how many slots a new slab may have, giving empty slabs back while it is short."""
        wanted = max(1, self._slab_bytes // stride)
        while not self._closed:
            fitting = (self.budget_bytes - self._mapped_bytes) // stride
            if fitting >= wanted or not self._give_back_one():
                return min(fitting, wanted)
        return 0

    def _map(self, stride: int, num_slots: int) -> Slab | None:
        try:
            slab = Slab(stride, num_slots)
        except (OSError, OverflowError):  # the machine has less memory than the budget says
            return None
        slab.unlock = self._lock_pages(slab.memory)
        return slab

    def _give_back_one(self) -> bool:
        """Unmap one slab that is not used, if there is any; the caller holds ``_mapping``."""
        with self._lock:
            if self._leaving:
                slab = self._leaving.pop()
            elif self._empty:
                _, slab = self._empty.popitem()
                self._forget(slab)
            else:
                return False
        nbytes = slab.nbytes
        slab.unlock()
        del slab  # the last reference: unmapped here, and charged to the budget until here
        with self._lock:
            self._mapped_bytes -= nbytes
        return True

    def _forget(self, slab: Slab) -> None:
        self._slabs.remove(slab)
        del self._open[slab.stride_bytes][slab]

    def _put_back(self, slab: Slab, offset: int) -> None:
        slab.free.append(offset)
        self._used_bytes -= slab.stride_bytes
        if slab.is_empty:
            self._keep_empty(slab)
        else:
            self._open[slab.stride_bytes][slab] = None

    def _keep_empty(self, slab: Slab) -> None:
        """Keep an empty slab for its class, in place of the one that was kept before."""
        slabs = self._open[slab.stride_bytes]
        slabs.pop(slab, None)
        slabs[slab] = None  # last in line: what is in use fills up first
        if surplus := self._empty.get(slab.stride_bytes):
            self._forget(surplus)
            self._leaving.append(surplus)
        self._empty[slab.stride_bytes] = slab


def _leave_pageable(_memory: memoryview) -> Unlock:
    return nothing_to_undo


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError(f"arena: {what}")
