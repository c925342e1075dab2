"""The books of one tier: which blocks it holds, what they occupy, and who goes when room is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvstore.errors import InvariantError
from kvstore.hints import Hint
from kvstore.seams import EvictionPolicy, Hearing


class Room(NamedTuple):
    """Bytes set aside in a tier for one block; ``victims`` must be deleted before they are used."""

    key: bytes
    footprint_bytes: int
    victims: tuple[bytes, ...]


@dataclass
class Ledger:
    """Bytes by state; their sum never exceeds ``budget_bytes``. Not thread-safe.

    A block is *arriving* while its bytes are written, *held* once it is visible, and *leaving*
    until its deletion has been confirmed (*stuck* when an attempt failed). The newcomer is *heir* to
    the bytes of its victims, because its writer deletes them first: they count only for it.
    *Theirs* are blocks that others stored on a medium that is shared; they count like any.
    """

    budget_bytes: int
    policy: EvictionPolicy
    held: dict[bytes, int] = field(default_factory=dict)
    arriving: dict[bytes, Room] = field(default_factory=dict)
    leaving: dict[bytes, int] = field(default_factory=dict)
    heirs: dict[bytes, Room] = field(default_factory=dict)
    stuck: set[bytes] = field(default_factory=set)
    theirs: set[bytes] = field(default_factory=set)
    held_bytes: int = 0
    arriving_bytes: int = 0
    leaving_bytes: int = 0

    @property
    def used_bytes(self) -> int:
        """All bytes that count against the budget."""
        return self.held_bytes + self.arriving_bytes + self.leaving_bytes

    def knows(self, key: bytes) -> bool:
        """Say whether ``key`` is here, on its way in or on its way out."""
        return key in self.held or key in self.arriving or key in self.leaving

    def reserve(self, key: bytes, footprint_bytes: int, is_in_use: Callable[[bytes], bool]) -> Room | None:
        """Set bytes aside for ``key``, naming victims as needed: all the room, or ``None``.

        ``None`` also when ``key`` is here, on its way in or on its way out.
        """
        if self.knows(key):
            return None
        victims = self._choose_victims(self.used_bytes + footprint_bytes - self.budget_bytes, is_in_use)
        if victims is None:
            return None
        room = Room(key, footprint_bytes, victims)
        for victim in victims:
            self.leaving[victim] = self._take(victim)
            self.heirs[victim] = room
        self.arriving[key] = room
        self.arriving_bytes += footprint_bytes
        return room

    def settle(self, room: Room, parent: bytes, now_s: float, *, is_theirs: bool = False) -> None:
        """Turn a reservation into a visible block."""
        self._end(room)
        self.add(room.key, parent, room.footprint_bytes, now_s, is_theirs=is_theirs)

    def cancel(self, room: Room) -> None:
        """Give a reservation back."""
        self._end(room)

    def add(
        self, key: bytes, parent: bytes, footprint_bytes: int, now_s: float, *, is_theirs: bool = False
    ) -> None:
        """Enter a block that is on the medium already."""
        if is_theirs:
            self.theirs.add(key)
        self.held[key] = footprint_bytes
        self.held_bytes += footprint_bytes
        self.policy.insert(key, parent, now_s)

    def their_victims(
        self, footprint_bytes: int, is_in_use: Callable[[bytes], bool]
    ) -> tuple[bytes, ...] | None:
        """Return who makes way for a block that is on the medium already; ``None``: not theirs alone."""
        victims = self._choose_victims(self.used_bytes + footprint_bytes - self.budget_bytes, is_in_use)
        return victims if victims is not None and self.theirs.issuperset(victims) else None

    def forget(self, key: bytes) -> None:
        """Take a visible block off the books; the medium keeps it."""
        self._take(key)
        self.theirs.discard(key)

    def next_victim(self, is_in_use: Callable[[bytes], bool]) -> bytes | None:
        """Return the block that is next to go; ``None``: all are in use."""
        return next(iter(self.policy.victims(is_in_use)), None)

    @property
    def hears(self) -> bool:
        """Whether the policy takes hints."""
        return isinstance(self.policy, Hearing)

    def hear(self, keys: Sequence[bytes], hint: Hint, now_s: float) -> None:
        """Pass a hint about a prompt on to a policy that takes hints."""
        if isinstance(self.policy, Hearing):
            self.policy.hear(keys, hint, now_s)

    def begin_removal(self, key: bytes) -> bool:
        """Start to remove a visible block; its bytes count until ``confirm_removal``."""
        if key not in self.held:
            return False
        taken_bytes = self._take(key)
        self.leaving[key] = taken_bytes
        self.leaving_bytes += taken_bytes
        return True

    def begin_rejection(self, key: bytes) -> bool:
        """Start to remove what the medium has and nobody knows; it was never counted."""
        if self.knows(key):
            return False
        self.leaving[key] = 0
        return True

    def confirm_removal(self, key: bytes) -> None:
        """Note that the medium has let go of ``key``."""
        footprint = self.leaving.pop(key, 0)
        if self.heirs.pop(key, None) is None:
            self.leaving_bytes -= footprint
        self.stuck.discard(key)
        self.theirs.discard(key)

    def removal_failed(self, key: bytes) -> None:
        """Note that the medium still has ``key``: its bytes count until a later attempt is confirmed.

        The room that was to inherit them is void.
        """
        if key not in self.leaving:
            return
        self.stuck.add(key)
        if room := self.heirs.get(key):
            self._disinherit(room)
            self._end(room)

    def is_void(self, room: Room) -> bool:
        """Say whether a reservation was lost because a victim could not be removed."""
        return self.arriving.get(room.key) is not room

    def check(self) -> None:
        """Raise ``InvariantError`` when the sums are wrong or the policy holds other blocks."""
        arriving = sum(room.footprint_bytes for room in self.arriving.values())
        leaving = sum(footprint for key, footprint in self.leaving.items() if key not in self.heirs)
        counted = (sum(self.held.values()), arriving, leaving)
        if counted != (self.held_bytes, self.arriving_bytes, self.leaving_bytes):
            raise InvariantError(f"bytes counted {counted} differ from the sums kept")
        if len(self.policy) != len(self.held) or any(key not in self.policy for key in self.held):
            raise InvariantError("the eviction policy holds other blocks than the tier")
        if not self.stuck | self.heirs.keys() <= self.leaving.keys() or self.stuck & self.heirs.keys():
            raise InvariantError("a stuck or inherited block is not on its way out")
        if not self.theirs <= self.held.keys() | self.leaving.keys():
            raise InvariantError("a block of others is not on the books")
        if self.used_bytes > self.budget_bytes:
            raise InvariantError(f"{self.used_bytes} bytes used exceed the budget of {self.budget_bytes}")
        self.policy.check()

    def _choose_victims(
        self, excess_bytes: int, is_in_use: Callable[[bytes], bool]
    ) -> tuple[bytes, ...] | None:
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

    def _disinherit(self, room: Room) -> None:
        for victim in room.victims:
            if self.heirs.pop(victim, None) is not None:
                self.leaving_bytes += self.leaving[victim]

    def _end(self, room: Room) -> None:
        del self.arriving[room.key]
        self.arriving_bytes -= room.footprint_bytes
