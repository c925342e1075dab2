"""What happens to the books of a tier: blocks arrive and leave, and who goes when room is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvstore.books import Books
from kvstore.hints import Hint
from kvstore.making_room import Room, RoomMaker
from kvstore.pins import Pin
from kvstore.quotas import Groups
from kvstore.seams import EvictionPolicy, Hearing, IsHeld


@dataclass
class Ledger(Books):
    """The books of a tier and what changes them. Not thread-safe."""

    def touch(self, key: bytes, now_s: float) -> None:
        """Note a use of ``key``."""
        self.policy.touch(key, now_s)
        if self.quotas.members:
            for group in self.quotas.members.get(key, ()):
                group.policy.touch(key, now_s)

    def policies_of(self, key: bytes) -> Iterator[EvictionPolicy]:
        """Yield the orders in which ``key`` stands, unless it is pinned."""
        yield self.policy
        for group in self.quotas.members.get(key, ()):
            yield group.policy

    def reserve(
        self, key: bytes, footprint_bytes: int, is_held: IsHeld, namespace: bytes = b""
    ) -> Room | None:
        """Set bytes aside for ``key``, naming victims as needed: all the room, or ``None``.

        ``None`` also when ``key`` is here, on its way in or on its way out.
        """
        if self.knows(key):
            return None
        groups = self.quotas.of(namespace) if self.quotas.has_rules else ()
        victims = self._choose_victims(footprint_bytes, groups, is_held)
        if victims is None:
            return None
        room = self.arriving[key] = Room(key, footprint_bytes, victims, namespace)
        freed_bytes = 0
        for victim in victims:
            nbytes = self.leaving[victim] = self._take(victim)
            freed_bytes += nbytes
            self.heirs[victim] = room
        self.leaving_bytes += freed_bytes
        if freed_bytes < footprint_bytes:
            room.charged_bytes = footprint_bytes - freed_bytes
            self.arriving_bytes += room.charged_bytes
        if groups:
            self._share(room, groups)
        return room

    def settle(self, room: Room, parent: bytes, now_s: float, *, is_theirs: bool = False) -> None:
        """Turn a reservation into a visible block."""
        groups = self._end(room)
        self._enter(room.key, parent, room.footprint_bytes, now_s, groups, is_theirs=is_theirs)

    def cancel(self, room: Room) -> None:
        """Give a reservation back."""
        self._end(room)

    def add(
        self, key: bytes, parent: bytes, footprint_bytes: int, now_s: float, *, namespace: bytes = b"",
        is_theirs: bool = False,
    ) -> None:  # fmt: skip
        """Enter a block that is on the medium already."""
        groups = self.quotas.of(namespace)
        self._enter(key, parent, footprint_bytes, now_s, groups, is_theirs=is_theirs)

    def has_room(self, footprint_bytes: int, namespace: bytes) -> bool:
        """Say whether a block fits as it is, without any victims."""
        is_within_budget = self.used_bytes + footprint_bytes <= self.budget_bytes
        return is_within_budget and self._fits_quotas(footprint_bytes, namespace)

    def note_refusal(self, key: bytes, footprint_bytes: int, namespace: bytes) -> None:
        """Count a block that was not taken in, if that is for its quota."""
        if not self.knows(key) and not self._fits_quotas(footprint_bytes, namespace):
            self.num_over_quota += 1

    def their_victims(
        self, footprint_bytes: int, is_held: IsHeld, namespace: bytes = b""
    ) -> tuple[bytes, ...] | None:
        """Return who makes way for a block that is on the medium already; ``None``: not theirs alone."""
        victims = self._choose_victims(footprint_bytes, self.quotas.of(namespace), is_held)
        return victims if victims is not None and self.theirs.issuperset(victims) else None

    def kept(self, is_held: IsHeld) -> IsHeld:
        """Say as well which blocks stay for pinned ones that follow them: those came after the pin."""
        if not self.pins.pins:
            return is_held
        return lambda key: self.pins.has_children(key) or is_held(key)

    def next_victim(self, is_held: IsHeld) -> bytes | None:
        """Return the block that is next to go; ``None``: all are in use or pinned."""
        is_kept = self.kept(is_held)
        return next(self.policy.victims(is_kept), None)

    def forget(self, key: bytes) -> None:
        """Take a visible block off the books; the medium keeps it."""
        nbytes = self._take(key)
        self.theirs.discard(key)
        for group in self.quotas.leave(key):
            group.used_bytes -= nbytes

    @property
    def hears(self) -> bool:
        """Whether the policy takes hints."""
        return isinstance(self.policy, Hearing)

    def hear(self, keys: Sequence[bytes], hint: Hint, now_s: float) -> None:
        """Pass a hint about a prompt on to the policies that take hints."""
        groups = {group for key in keys for group in self.quotas.members.get(key, ())}
        for policy in (self.policy, *(group.policy for group in groups)):
            if isinstance(policy, Hearing):
                policy.hear(keys, hint, now_s)

    def begin_removal(self, key: bytes) -> bool:
        """Start to remove a visible block; its bytes count until ``confirm_removal``."""
        if key not in self.held:
            return False
        nbytes = self.leaving[key] = self._take(key)
        self.leaving_bytes += nbytes
        return True

    def begin_rejection(self, key: bytes) -> bool:
        """Start to remove what the medium has and nobody knows; it was never counted."""
        if self.knows(key):
            return False
        self.leaving[key] = 0
        return True

    def confirm_removal(self, key: bytes) -> None:
        """Note that the medium has let go of ``key``."""
        nbytes, heir = self.leaving.pop(key, 0), self.heirs.pop(key, None)
        self.leaving_bytes -= nbytes
        if heir is not None:
            self.arriving_bytes += heir.inherit(nbytes)
        if self.quotas.members:
            for group in self.quotas.leave(key):
                group.used_bytes -= nbytes - (heir.inherit_share(group, nbytes) if heir else 0)
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
            self._end(room)

    def is_void(self, room: Room) -> bool:
        """Say whether a reservation was lost because a victim could not be removed."""
        return self.arriving.get(room.key) is not room

    def pin(self, key: bytes, pin: Pin) -> None:
        """Keep a held block until a time, come what may but its end, a fault or its removal."""
        if key not in self.pins:
            for policy in self.policies_of(key):
                policy.remove(key)
        self.pins.add(key, pin)

    def unpin(self, key: bytes, now_s: float) -> None:
        """Let a pinned block be ordinary, as if it were used now; nothing happens when it is not pinned."""
        pin = self.pins.drop(key)
        if pin is not None:
            for policy in self.policies_of(key):
                policy.insert(key, pin.parent, now_s)

    def end_pins(self, now_ms: int, now_s: float, limit: int) -> int:
        """Let up to ``limit`` blocks be ordinary whose pins are over; returns how many it were."""
        num_ended = 0
        while num_ended < limit and (key := self.pins.next_due(now_ms)) is not None:
            self.unpin(key, now_s)
            num_ended += 1
        return num_ended

    def regroup(self, facts_of: Callable[[bytes], tuple[bytes, bytes]], now_s: float) -> None:
        """Count every block where it belongs now; ``facts_of`` a held block are its namespace and parent.

        What is leaving counts no more where it did not before.
        """
        for key, nbytes in self.held.items():
            namespace, parent = facts_of(key)
            lost, gained = self.quotas.swap(key, self.quotas.of(namespace))
            for group in lost:
                group.policy.remove(key)
                group.used_bytes -= nbytes
            for group in gained:
                group.used_bytes += nbytes
                if key not in self.pins:
                    group.policy.insert(key, parent, now_s)
        for room in self.arriving.values():
            lost, gained = self.quotas.swap(room.key, self.quotas.of(room.namespace))
            for group in lost:
                group.used_bytes -= room.shares.pop(group)
            for group in gained:
                group.used_bytes += room.footprint_bytes
                room.shares[group] = room.footprint_bytes
        self.quotas.regrouped()

    def _fits_quotas(self, footprint_bytes: int, namespace: bytes) -> bool:
        groups = self.quotas.of(namespace)
        return all(group.used_bytes + footprint_bytes <= group.quota_bytes for group in groups)

    def _choose_victims(
        self, footprint_bytes: int, groups: Groups, is_held: IsHeld
    ) -> tuple[bytes, ...] | None:
        """Return who goes for a block: of its groups, then of groups over their quota, then of any."""
        excess_bytes = self.used_bytes + footprint_bytes - self.budget_bytes
        is_kept = self.kept(is_held)
        if not groups and not (self.quotas.members and self.quotas.over()):
            return self._next_to_go(excess_bytes, is_kept)
        maker = RoomMaker(self.held, self.quotas.members, is_kept)
        if not maker.keep_quotas(groups, footprint_bytes):
            return None
        for group in self.quotas.over():
            maker.reduce(group, group.quota_bytes, excess_bytes)
        return maker.chosen(self.policy, excess_bytes)

    def _next_to_go(self, excess_bytes: int, is_kept: IsHeld) -> tuple[bytes, ...] | None:
        if excess_bytes <= 0:
            return ()
        victims: list[bytes] = []
        for victim in self.policy.victims(is_kept):
            victims.append(victim)
            excess_bytes -= self.held[victim]
            if excess_bytes <= 0:
                return tuple(victims)
        return None

    def _enter(
        self, key: bytes, parent: bytes, nbytes: int, now_s: float, groups: Groups, *, is_theirs: bool
    ) -> None:
        if is_theirs:
            self.theirs.add(key)
        self.held[key] = nbytes
        self.held_bytes += nbytes
        self.policy.insert(key, parent, now_s)
        if groups:
            self.quotas.join(key, groups)
            for group in groups:
                group.used_bytes += nbytes
                group.policy.insert(key, parent, now_s)

    def _take(self, key: bytes) -> int:
        """Take a held block out of the orders; it still counts in its groups."""
        nbytes = self.held.pop(key)
        self.held_bytes -= nbytes
        if self.pins.pins and self.pins.drop(key):
            return nbytes
        self.policy.remove(key)
        if self.quotas.members:
            for group in self.quotas.members.get(key, ()):
                group.policy.remove(key)
        return nbytes

    def _share(self, room: Room, groups: Groups) -> None:
        """Count an arriving block in its groups, beyond those of its victims that count there too."""
        self.quotas.join(room.key, groups)
        members = self.quotas.members
        for group in groups:
            theirs = sum(self.leaving[victim] for victim in room.victims if group in members.get(victim, ()))
            share = room.shares[group] = max(0, room.footprint_bytes - theirs)
            group.used_bytes += share

    def _end(self, room: Room) -> Groups:
        """Count a reservation no more; returns the groups in which it did."""
        del self.arriving[room.key]
        self.arriving_bytes -= room.charged_bytes
        if self.heirs:
            for victim in room.victims:
                if self.heirs.get(victim) is room:
                    del self.heirs[victim]
        groups = self.quotas.leave(room.key) if room.shares else ()
        for group in groups:
            group.used_bytes -= room.shares.pop(group)
        return groups
