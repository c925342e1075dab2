"""Making room for a block: who goes, all or none, and what the newcomer is charged with meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvstore.quotas import Group, Groups
from kvstore.seams import EvictionPolicy, IsHeld


@dataclass(slots=True, eq=False)
class Room:
    """Bytes set aside in a tier for one block; ``victims`` must be deleted before they are used.

    A victim counts until it is deleted. Besides, the block is charged with what it needs beyond them
    (``charged_bytes``); what is deleted passes to it, up to its footprint. So too in each group
    (``shares``).
    """

    key: bytes
    footprint_bytes: int
    victims: tuple[bytes, ...]
    namespace: bytes = b""
    charged_bytes: int = 0
    shares: dict[Group, int] = field(default_factory=dict)

    def inherit(self, nbytes: int) -> int:
        """Take over the bytes of a victim that has left; returns how many more it is charged with."""
        more = min(nbytes, self.footprint_bytes - self.charged_bytes)
        self.charged_bytes += more
        return more

    def inherit_share(self, group: Group, nbytes: int) -> int:
        """Do so in a group; none where the block does not count in it."""
        more = min(nbytes, self.footprint_bytes - self.shares[group]) if group in self.shares else 0
        if more:
            self.shares[group] += more
        return more


class RoomMaker:
    """Chooses victims, from one order after the other; what was chosen counts as gone. For one block."""

    def __init__(
        self,
        held: Mapping[bytes, int],
        members: Mapping[bytes, Groups],
        is_kept: IsHeld,
    ) -> None:
        self._held = held
        self._members = members
        self._is_kept = is_kept
        self._chosen: dict[bytes, None] = {}
        self._chosen_bytes = 0
        self._of_groups: dict[Group, int] = {}

    def keep_quotas(self, groups: Groups, footprint_bytes: int) -> bool:
        """Choose blocks of ``groups`` so that one more fits each of their quotas; says whether it does."""
        return all(
            footprint_bytes <= group.quota_bytes and self.reduce(group, group.quota_bytes - footprint_bytes)
            for group in groups
        )

    def reduce(self, group: Group, to_bytes: int, enough_bytes: int | None = None) -> bool:
        """Choose blocks of ``group`` until it has ``to_bytes``, or ``enough_bytes`` are chosen in all.

        ``False``: all that may go do not suffice; they are chosen nevertheless.
        """

        def is_done() -> bool:
            if enough_bytes is not None and self._chosen_bytes >= enough_bytes:
                return True
            return group.used_bytes - self._of_groups.get(group, 0) <= to_bytes

        return self._choose(group.policy, is_done)

    def chosen(self, policy: EvictionPolicy, excess_bytes: int) -> tuple[bytes, ...] | None:
        """Return what was chosen, and what it takes to free ``excess_bytes``, if there is enough."""
        is_enough = self._choose(policy, lambda: self._chosen_bytes >= excess_bytes)
        return tuple(self._chosen) if is_enough else None

    def _choose(self, policy: EvictionPolicy, is_done: Callable[[], bool]) -> bool:
        if is_done():
            return True
        for key in policy.victims(self._is_kept):
            if key not in self._chosen:
                self._take(key)
                if is_done():
                    return True
        return False

    def _take(self, key: bytes) -> None:
        self._chosen[key] = None
        self._chosen_bytes += self._held[key]
        for group in self._members.get(key, ()) if self._members else ():
            self._of_groups[group] = self._of_groups.get(group, 0) + self._held[key]
