"""What one tier will hold after steps that are only planned, and who makes way for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from kvstore.admin.outcome import Why
from kvstore.ledger import Ledger
from kvstore.quotas import Group
from kvstore.seams import EvictionPolicy, IsHeld


class _Order:
    """Who goes first by one policy; what was taken and is not needed after all comes back in front."""

    def __init__(self, policy: EvictionPolicy, keys: Iterator[bytes]) -> None:
        self.policy = policy
        self._keys = keys
        self._back: list[bytes] = []

    def take(self, gone: dict[bytes, int]) -> bytes | None:
        if self._back:
            return self._back.pop()
        return next((key for key in self._keys if key not in gone), None)

    def put_back(self, key: bytes) -> None:
        self._back.append(key)


class Forecast:
    """A tier's books, and beside them what is planned. Not thread-safe; used under the index's lock.

    Victims are named as the tier's policy orders them now, those of a newcomer's own quota first, as when a
    block is stored. ``begin`` must be called each time that the lock was taken: orders are read anew then,
    and go on behind what is planned to go.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._gone: dict[bytes, int] = {}
        self._come: dict[bytes, int] = {}
        self._more_bytes = 0
        self._more_of_groups = Counter[tuple[str, str]]()
        self._more_pinned_bytes = 0
        self._orders: dict[int, _Order] = {}
        self._refused: dict[bytes, tuple[int, Why]] = {}
        self._is_kept: IsHeld = _nobody
        self._is_spared: IsHeld = _nobody

    def begin(self, is_kept: IsHeld, is_spared: IsHeld) -> None:
        """Note who may not go, and who goes last, from now on."""
        self._is_kept, self._is_spared = self._ledger.kept(is_kept), is_spared
        self._orders, self._refused = {}, {}

    def knows(self, key: bytes) -> bool:
        """Say whether a block is there, on its way in or on its way out."""
        is_here = self._ledger.knows(key) and key not in self._gone
        return is_here or key in self._come

    def leave(self, key: bytes) -> int:
        """Let a block go; returns the bytes that it occupied."""
        self._refused = {}
        return self._leave(key)

    def take_in(self, key: bytes, namespace: bytes, nbytes: int) -> tuple[bytes, ...] | Why:
        """Let a block come: returns those that make way for it, in their order, or why it does not fit."""
        least_bytes, why_before = self._refused.get(namespace, (0, Why.NO_ROOM))
        if least_bytes and nbytes >= least_bytes:
            return why_before
        chosen: list[tuple[_Order, bytes]] = []
        why = self._make_room(namespace, nbytes, chosen)
        if why is not None:
            for order, victim in reversed(chosen):
                self._count(victim, self._gone.pop(victim))
                order.put_back(victim)
            self._refused[namespace] = nbytes, why
            return why
        self._come[key] = nbytes
        self._more_bytes += nbytes
        for group in self._ledger.quotas.of(namespace):
            self._more_of_groups[group.scope, group.name] += nbytes
        return tuple(victim for _, victim in chosen)

    def may_pin(self, nbytes: int) -> bool:
        """Say whether as many bytes more may be pinned there."""
        pinned_bytes = self._ledger.pins.pinned_bytes + self._more_pinned_bytes + nbytes
        return 2 * pinned_bytes <= self._ledger.budget_bytes

    def pin(self, nbytes: int) -> None:
        """Count as many bytes more as pinned."""
        self._more_pinned_bytes += nbytes

    def _make_room(self, namespace: bytes, nbytes: int, chosen: list[tuple[_Order, bytes]]) -> Why | None:
        """Choose whom it takes; ``chosen`` are those also when it does not suffice."""
        quotas = self._ledger.quotas
        for group in quotas.of(namespace):
            if nbytes > group.quota_bytes:
                return Why.QUOTA
            if not self._choose(group.policy, partial(self._fits_in, group, nbytes), chosen):
                return Why.QUOTA
        for group in quotas.over():
            self._choose(group.policy, partial(self._fits, nbytes, group), chosen)
        is_enough = self._choose(self._ledger.policy, partial(self._fits, nbytes), chosen)
        return None if is_enough else Why.NO_ROOM

    def _choose(
        self, policy: EvictionPolicy, is_done: Callable[[], bool], chosen: list[tuple[_Order, bytes]]
    ) -> bool:
        order = self._orders.setdefault(id(policy), self._begun(policy))
        while not is_done():
            victim = order.take(self._gone)
            if victim is None:
                return False
            chosen.append((order, victim))
            self._leave(victim)
        return True

    def _leave(self, key: bytes) -> int:
        nbytes = self._gone[key] = self._ledger.held[key]
        self._count(key, -nbytes)
        return nbytes

    def _begun(self, policy: EvictionPolicy) -> _Order:
        def keys() -> Iterator[bytes]:
            yield from policy.victims(lambda key: self._is_spared(key) or self._is_kept(key))
            yield from policy.victims(self._is_kept)

        return _Order(policy, keys())

    def _fits(self, nbytes: int, over: Group | None = None) -> bool:
        """Say whether a block fits the tier, or ``over`` is within its quota by now."""
        is_within_budget = self._ledger.used_bytes + self._more_bytes + nbytes <= self._ledger.budget_bytes
        return is_within_budget or (over is not None and self._fits_in(over, 0))

    def _fits_in(self, group: Group, nbytes: int) -> bool:
        more_bytes = self._more_of_groups[group.scope, group.name]
        return group.used_bytes + more_bytes + nbytes <= group.quota_bytes

    def _count(self, key: bytes, nbytes: int) -> None:
        self._more_bytes += nbytes
        for group in self._ledger.quotas.members.get(key, ()):
            self._more_of_groups[group.scope, group.name] += nbytes


def _nobody(_key: bytes) -> bool:
    return False
