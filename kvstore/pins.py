"""Pins: which blocks of a tier stay until a time, and who pays for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from kvstore.errors import InvariantError

_MIN_COMPACTION = 64


class Pin(NamedTuple):
    """A pinned block of one tier, until when (epoch ms), and the tenant to whom its bytes are charged."""

    parent: bytes
    until_ms: int
    tenant: str
    charged_bytes: int


@dataclass
class TierPins:
    """The pinned blocks of one tier, soonest to end first. Not thread-safe.

    ``charges`` are the bytes by tenant, of all tiers together. A pinned block stands in no eviction order.
    """

    charges: dict[str, int] = field(default_factory=dict)
    pins: dict[bytes, Pin] = field(default_factory=dict)
    pinned_bytes: int = 0
    _num_children: dict[bytes, int] = field(default_factory=dict)
    _ends: list[tuple[int, bytes]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.pins)

    def __contains__(self, key: bytes) -> bool:
        return key in self.pins

    def has_children(self, key: bytes) -> bool:
        """Say whether a block that follows ``key`` is pinned."""
        return key in self._num_children

    def add(self, key: bytes, pin: Pin) -> None:
        """Pin a block, or put its end off: the latest counts, and it is charged once."""
        before = self.pins.get(key)
        if before is not None and pin.until_ms <= before.until_ms:
            return
        heappush(self._ends, (pin.until_ms, key))
        if before is not None:
            self.pins[key] = before._replace(until_ms=pin.until_ms)
        else:
            self.pins[key] = pin
            self._charge(pin.tenant, pin.charged_bytes)
            if pin.parent:
                self._num_children[pin.parent] = self._num_children.get(pin.parent, 0) + 1
        if len(self._ends) > max(_MIN_COMPACTION, 2 * len(self.pins)):
            self._ends = [(pin.until_ms, key) for key, pin in self.pins.items()]
            heapify(self._ends)

    def drop(self, key: bytes) -> Pin | None:
        """Let a block be ordinary, and give its charge back; ``None``: it was not pinned."""
        pin = self.pins.pop(key, None)
        if pin is None:
            return None
        self._charge(pin.tenant, -pin.charged_bytes)
        if pin.parent:
            num_left = self._num_children.pop(pin.parent) - 1
            if num_left:
                self._num_children[pin.parent] = num_left
        return pin

    def next_due(self, now_ms: int) -> bytes | None:
        """Return a block whose pin is over; ``None``: there is none."""
        while self._ends and self._ends[0][0] <= now_ms:
            until_ms, key = self._ends[0]
            pin = self.pins.get(key)
            if pin is not None and pin.until_ms == until_ms:
                return key
            heappop(self._ends)
        return None

    def check(self) -> None:
        """Raise ``InvariantError`` when sums or ends are wrong."""
        if sum(pin.charged_bytes for pin in self.pins.values()) != self.pinned_bytes:
            raise InvariantError("the bytes pinned differ from the sum kept")
        children: dict[bytes, int] = {}
        for pin in self.pins.values():
            if pin.parent:
                children[pin.parent] = children.get(pin.parent, 0) + 1
        if children != self._num_children:
            raise InvariantError("the counts of pinned children are wrong")
        if not {(pin.until_ms, key) for key, pin in self.pins.items()} <= set(self._ends):
            raise InvariantError("a pin would never end")

    def _charge(self, tenant: str, nbytes: int) -> None:
        self.pinned_bytes += nbytes
        charged = self.charges.get(tenant, 0) + nbytes
        if charged:
            self.charges[tenant] = charged
        else:
            self.charges.pop(tenant, None)
