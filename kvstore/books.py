"""The books of one tier: which blocks it holds and what they occupy."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvstore.errors import InvariantError
from kvstore.making_room import Room
from kvstore.pins import TierPins
from kvstore.quotas import Group, Quotas
from kvstore.seams import EvictionPolicy


@dataclass
class Books:
    """Bytes by state; their sum never exceeds ``budget_bytes``. Not thread-safe.

    A block is *arriving* while its bytes are written, *held* once it is visible, and *leaving*
    until its deletion has been confirmed (*stuck* when an attempt failed). The newcomer is *heir* to
    the bytes of its victims, because its writer deletes them first.
    *Theirs* are blocks that others stored on a medium that is shared; they count like any.
    ``policy`` orders all that is held and not pinned.
    """

    budget_bytes: int
    policy: EvictionPolicy
    quotas: Quotas = field(default_factory=Quotas)
    pins: TierPins = field(default_factory=TierPins)
    held: dict[bytes, int] = field(default_factory=dict)
    arriving: dict[bytes, Room] = field(default_factory=dict)
    leaving: dict[bytes, int] = field(default_factory=dict)
    heirs: dict[bytes, Room] = field(default_factory=dict)
    stuck: set[bytes] = field(default_factory=set)
    theirs: set[bytes] = field(default_factory=set)
    held_bytes: int = 0
    arriving_bytes: int = 0
    leaving_bytes: int = 0
    num_over_quota: int = 0

    @property
    def used_bytes(self) -> int:
        """All bytes that count against the budget."""
        return self.held_bytes + self.arriving_bytes + self.leaving_bytes

    def knows(self, key: bytes) -> bool:
        """Say whether ``key`` is here, on its way in or on its way out."""
        return key in self.held or key in self.arriving or key in self.leaving

    def check(self) -> None:
        """Raise ``InvariantError`` when the sums are wrong or the policy holds other blocks."""
        arriving = sum(room.charged_bytes for room in self.arriving.values())
        counted = (sum(self.held.values()), arriving, sum(self.leaving.values()))
        if counted != (self.held_bytes, self.arriving_bytes, self.leaving_bytes):
            raise InvariantError(f"bytes counted {counted} differ from the sums kept")
        if not self.stuck | self.heirs.keys() <= self.leaving.keys() or self.stuck & self.heirs.keys():
            raise InvariantError("a stuck or inherited block is not on its way out")
        if not self.theirs <= self.held.keys() | self.leaving.keys():
            raise InvariantError("a block of others is not on the books")
        if self.used_bytes > self.budget_bytes:
            raise InvariantError(f"{self.used_bytes} bytes used exceed the budget of {self.budget_bytes}")
        self._check_orders()

    def _check_orders(self) -> None:
        pinned = self.pins.pins
        if not pinned.keys() <= self.held.keys() or 2 * self.pins.pinned_bytes > self.budget_bytes:
            raise InvariantError("a pinned block is not held, or more than half of the tier is pinned")
        if any(self.held[key] != pin.charged_bytes for key, pin in pinned.items()):
            raise InvariantError("a pinned block is charged with other bytes than it occupies")
        ordered = self.held.keys() - pinned.keys()
        if len(self.policy) != len(ordered) or any(key not in self.policy for key in ordered):
            raise InvariantError("the eviction policy holds other blocks than the tier")
        self.policy.check()
        self.pins.check()
        self.quotas.check(self._counted, ordered.__contains__)

    def _counted(self, key: bytes, group: Group) -> int:
        """Return what a block counts in one of its groups."""
        room = self.arriving.get(key)
        return room.shares[group] if room else self.held.get(key) or self.leaving[key]
