"""The books of one tier: which blocks it holds, what they occupy, and who goes when room is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvstore.errors import InvariantError
from kvstore.seams import EvictionPolicy


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes set aside in a tier for one block; ``victims`` must be deleted before they are used."""

    key: bytes
    footprint_bytes: int
    victims: tuple[bytes, ...]


@dataclass
class Ledger:
    """Bytes by state; their sum never exceeds ``budget_bytes``. Not thread-safe.

    A block is *arriving* while its bytes are written, *held* once it is visible, and *leaving*
    until its deletion has been confirmed. Victims of a reservation leave with their bytes already
    counted for the newcomer, because its writer deletes them first.
    """

    budget_bytes: int
    policy: EvictionPolicy
    held: dict[bytes, int] = field(default_factory=dict)
    arriving: dict[bytes, Room] = field(default_factory=dict)
    leaving: dict[bytes, int] = field(default_factory=dict)
    held_bytes: int = 0
    arriving_bytes: int = 0
    leaving_bytes: int = 0

    @property
    def used_bytes(self) -> int:
        """All bytes that count against the budget."""
        return self.held_bytes + self.arriving_bytes + self.leaving_bytes

    def reserve(self, key: bytes, footprint_bytes: int, is_in_use: Callable[[bytes], bool]) -> Room | None:
        """Set bytes aside for ``key``, naming victims as needed: all the room, or ``None``.

        ``None`` also when ``key`` is here, on its way in or on its way out.
        """
        if key in self.held or key in self.arriving or key in self.leaving:
            return None
        victims = self._choose_victims(self.used_bytes + footprint_bytes - self.budget_bytes, is_in_use)
        if victims is None:
            return None
        for victim in victims:
            self._take(victim)
            self.leaving[victim] = 0
        room = Room(key, footprint_bytes, victims)
        self.arriving[key] = room
        self.arriving_bytes += footprint_bytes
        return room

    def settle(self, room: Room, parent: bytes, now_s: float) -> None:
        """Turn a reservation into a visible block."""
        self._end(room)
        self.add(room.key, parent, room.footprint_bytes, now_s)

    def cancel(self, room: Room) -> None:
        """Give a reservation back."""
        self._end(room)

    def add(self, key: bytes, parent: bytes, footprint_bytes: int, now_s: float) -> None:
        """Enter a block that is on the medium already."""
        self.held[key] = footprint_bytes
        self.held_bytes += footprint_bytes
        self.policy.insert(key, parent, now_s)

    def begin_removal(self, key: bytes) -> bool:
        """Start to remove a visible block; its bytes count until ``confirm_removal``."""
        if key not in self.held:
            return False
        self.leaving[key] = self._take(key)
        self.leaving_bytes += self.leaving[key]
        return True

    def confirm_removal(self, key: bytes) -> None:
        """The medium has let go of ``key``."""
        self.leaving_bytes -= self.leaving.pop(key, 0)

    def removal_failed(self, key: bytes, footprint_bytes: int) -> None:
        """The medium still has ``key``: count its bytes until a later attempt is confirmed."""
        if key in self.leaving and not self.leaving[key]:
            self.leaving[key] = footprint_bytes
            self.leaving_bytes += footprint_bytes

    def check(self) -> None:
        """Raise ``InvariantError`` when the sums are wrong or the policy holds other blocks."""
        arriving = sum(room.footprint_bytes for room in self.arriving.values())
        counted = (sum(self.held.values()), arriving, sum(self.leaving.values()))
        if counted != (self.held_bytes, self.arriving_bytes, self.leaving_bytes):
            raise InvariantError(f"bytes counted {counted} differ from the sums kept")
        if len(self.policy) != len(self.held) or any(key not in self.policy for key in self.held):
            raise InvariantError("the eviction policy holds other blocks than the tier")
        self.policy.check()

    def _choose_victims(self, excess_bytes: int, is_in_use: Callable[[bytes], bool]) -> tuple[bytes, ...] | None:
        if excess_bytes <= 0:
            return ()
        victims: list[bytes] = []
        for victim in self.policy.victims(is_in_use):
            victims.append(victim)
            excess_bytes -= self.held[victim]
            if excess_bytes <= 0:
                return tuple(victims)
        return None

    def _take(self, key: bytes) -> int:
        footprint = self.held.pop(key)
        self.held_bytes -= footprint
        self.policy.remove(key)
        return footprint

    def _end(self, room: Room) -> None:
        del self.arriving[room.key]
        self.arriving_bytes -= room.footprint_bytes
