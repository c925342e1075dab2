"""The host tier's memory: mapped slabs of equal page-aligned slots, within an exact byte budget.

::

    budget_bytes  |=========== slab ===========|=========== slab ===========|== small slab ==|  .  |
    slots         |  used  |  free  |  used  | |  used  |  used  |  used  | |  free  |       left over
                  '--- stride_bytes: whole pages, one size class per slab ---'

A slab belongs to a class: one slot size of one owner, for owners that must not see each other's bytes
have no mapping in common. A class keeps at most one empty slab, so that a block that comes and goes does
not map and unmap in turn; others are given back at once, and the kept one as soon as another class
needs its room.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from kvstore.errors import ConfigError, InvariantError
from kvstore.slab import (
    PAGE_BYTES,
    MapSlab,
    Slab,
    Unlock,
    map_private_slab,
    nothing_to_undo,
    slot_stride,
)  # fmt: skip

__all__ = ["DEFAULT_SLAB_BYTES", "PAGE_BYTES", "Arena", "OwnerOf", "Slot", "slot_stride"]

DEFAULT_SLAB_BYTES = 32 * 1024 * 1024

LockPages = Callable[[memoryview], Unlock]
OwnerOf = Callable[[bytes], bytes]
"""Says whose a namespace is, by its digest: blocks of two owners have no slab in common."""

_NO_BYTES = memoryview(b"")

_Class = tuple[bytes, int]  # owner, stride


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
        self.view = slab.memory.slots[offset : offset + nbytes]

    def free(self) -> None:
        """Give the region back. Raises ``InvariantError`` the second time."""
        self.arena.take_back(self)


class Arena:
    """Hands out slots of host memory, at most ``budget_bytes`` mapped at any time; thread-safe.

    ``lock_pages`` is called with the slots of each new slab and returns what undoes it (page-locking
    for a GPU); what it raises, ``allocate`` raises. ``map_slab`` is where the memory comes from; what it
    takes beside the slots (8 bytes for each) is not counted. Of each size and owner one slab is kept when it
    is empty, and others as long as they take up to ``spare_bytes`` together.
    """

    def __init__(
        self,
        budget_bytes: int,
        slab_bytes: int = DEFAULT_SLAB_BYTES,
        lock_pages: LockPages | None = None,
        map_slab: MapSlab = map_private_slab,
        spare_bytes: int = 0,
    ) -> None:
        if budget_bytes < 0 or slab_bytes <= 0:
            raise ConfigError("arena", f"budget {budget_bytes} and slab {slab_bytes} bytes must be positive")
        self.budget_bytes = budget_bytes
        self._slab_bytes = slab_bytes
        self._lock_pages = lock_pages or _leave_pageable
        self._map_slab = map_slab
        self._spare_bytes = spare_bytes
        self._num_mapped = 0
        self._slabs: dict[int, Slab] = {}
        self._open: dict[_Class, dict[Slab, None]] = {}  # slabs with a free slot, in order of use
        self._empty: dict[Slab, None] = {}  # those that are kept, the longest empty first
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

    def allocate(self, nbytes: int, owner: bytes = b"") -> Slot | None:
        """Return a slot of ``nbytes``, or ``None`` when the budget (or the machine) has no room.

        About a microsecond; a new slab takes longer, most of it in ``lock_pages``. In the slot's slab
        there are only others of the same ``owner``.
        """
        wanted = owner, slot_stride(nbytes)
        with self._lock:
            slot = self._take(wanted, nbytes)
        return slot or self._allocate_from_new_slab(wanted, nbytes)

    def slab(self, number: int) -> Slab | None:
        """Return the slab with this number, while it is in use or kept."""
        with self._lock:
            return self._slabs.get(number)

    def take_back(self, slot: Slot) -> None:
        """Make ``slot`` free again. Raises ``InvariantError`` when it is already."""
        with self._lock:
            slab, slot.slab = slot.slab, None
            if slab is None:
                raise InvariantError("a slot was freed twice")
            slot.view = _NO_BYTES
            if slab.number in self._slabs:
                self._put_back(slab, slot.offset)
            surplus = bool(self._leaving)
        if surplus:
            with self._mapping:
                self._give_back_one()

    def check(self) -> None:
        """Raise ``InvariantError`` when slabs, free slots and totals do not add up."""
        with self._mapping, self._lock:
            slabs = self._slabs.values()
            for slab in slabs:
                slab.check()
            open_slabs = {slab for of_class in self._open.values() for slab in of_class}
            _require(open_slabs == {slab for slab in slabs if slab.free}, "free slots out of reach")
            empty = {slab for slab in slabs if slab.is_empty}
            _require(empty == set(self._empty), "an empty slab was not given back")
            _require(not any(map(self._surplus, empty)), "too many empty slabs are kept")
            _require(sum(slab.used_bytes for slab in slabs) == self._used_bytes, "used bytes")
            mapped = [*slabs, *self._leaving]
            _require(sum(slab.nbytes for slab in mapped) == self._mapped_bytes, "mapped bytes")
            _require(self._mapped_bytes <= self.budget_bytes, "more is mapped than the budget allows")

    def close(self) -> None:
        """Give all slabs back; idempotent. Views that are still referenced stay mapped until let go."""
        with self._mapping:
            with self._lock:
                self._closed = True
                slabs = [*self._slabs.values(), *self._leaving]
                for holder in (self._slabs, self._open, self._empty, self._leaving):
                    holder.clear()
                self._used_bytes = self._mapped_bytes = 0
            for slab in slabs:
                slab.let_go()

    def _take(self, wanted: _Class, nbytes: int) -> Slot | None:
        slabs = self._open.get(wanted)
        if not slabs:
            return None
        slab = next(iter(slabs))
        if slab.is_empty:
            del self._empty[slab]
        offset = slab.free.pop()
        if not slab.free:
            del slabs[slab]
        self._used_bytes += slab.stride_bytes
        return Slot(self, slab, offset, nbytes)

    def _allocate_from_new_slab(self, wanted: _Class, nbytes: int) -> Slot | None:
        with self._mapping:
            with self._lock:  # somebody else may have mapped or freed meanwhile
                if slot := self._take(wanted, nbytes):
                    return slot
            num_slots = self._make_room(wanted[1])
            slab = self._map(wanted, num_slots) if num_slots else None
            if slab is None:
                return None
            with self._lock:
                self._slabs[slab.number] = slab
                self._mapped_bytes += slab.nbytes
                self._open.setdefault(wanted, {})
                self._keep_empty(slab)  # a slot that was freed meanwhile may be taken before its own
                slot = self._take(wanted, nbytes)
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

    def _map(self, wanted: _Class, num_slots: int) -> Slab | None:
        owner, stride = wanted
        try:
            memory = self._map_slab(stride, num_slots)
        except (OSError, OverflowError):  # the machine has less memory than the budget says
            return None
        self._num_mapped += 1
        slab = Slab(stride, memory, owner, self._num_mapped)
        slab.unlock = self._lock_pages(memory.slots)
        return slab

    def _give_back_one(self) -> bool:
        """Unmap one slab that is not used, if there is any; the caller holds ``_mapping``."""
        with self._lock:
            if self._leaving:
                slab = self._leaving.pop()
            elif self._empty:
                slab = next(iter(self._empty))
                self._forget(slab)
            else:
                return False
        nbytes = slab.nbytes
        slab.let_go()
        del slab  # the last reference: unmapped here, and charged to the budget until here
        with self._lock:
            self._mapped_bytes -= nbytes
        return True

    def _forget(self, slab: Slab) -> None:
        del self._empty[slab]
        del self._slabs[slab.number]
        del self._open[_class_of(slab)][slab]

    def _put_back(self, slab: Slab, offset: int) -> None:
        slab.put_back(offset)
        self._used_bytes -= slab.stride_bytes
        if slab.is_empty:
            self._keep_empty(slab)
        else:
            self._open[_class_of(slab)][slab] = None

    def _keep_empty(self, slab: Slab) -> None:
        """Keep an empty slab for its class, perhaps in place of one that was kept before."""
        slabs = self._open[_class_of(slab)]
        slabs.pop(slab, None)
        slabs[slab] = None  # last in line: what is in use fills up first
        self._empty[slab] = None
        if surplus := self._surplus(slab):
            self._forget(surplus)
            self._leaving.append(surplus)

    def _surplus(self, slab: Slab) -> Slab | None:
        """Return an empty slab of the same class that is not to be kept."""
        kept = [other for other in self._empty if _class_of(other) == _class_of(slab)]
        is_too_much = len(kept) > 1 and sum(other.nbytes for other in kept) > self._spare_bytes
        return kept[0] if is_too_much else None


def _class_of(slab: Slab) -> _Class:
    return slab.owner, slab.stride_bytes


def _leave_pageable(_memory: memoryview) -> Unlock:
    return nothing_to_undo


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError(f"arena: {what}")
