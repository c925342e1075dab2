"""What one tier will hold after steps that are only planned, and who makes way for them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

from kvstore.admin.outcome import Why
from kvstore.ledger import Ledger
from kvstore.quotas import Group
from kvstore.seams import EvictionPolicy, IsHeld

_AHEAD = 512


class _Order:
    """Who goes first by one policy, some of them known ahead: an order is not good for longer than a lock.

    ``victims`` begins an order anew; ``may_go`` says whether one of them still may.
    """

    def __init__(self, victims: Callable[[], Iterator[bytes]], may_go: IsHeld) -> None:
        self._victims = victims
        self._may_go = may_go
        self._ahead: deque[bytes] = deque()
        self._is_at_end = False

    def take(self, num_gone: int) -> bytes | None:
        """Return the next one, of which ``num_gone`` before it are gone by plan; ``None``: there is none."""
        while self._ahead or not self._is_at_end:
            if not self._ahead:
                left = (key for key in self._victims() if self._may_go(key))
                self._ahead.extend(islice(left, max(_AHEAD, num_gone // 4)))
                self._is_at_end = not self._ahead
            elif self._may_go(key := self._ahead.popleft()):
                return key
        return None

    def put_back(self, key: bytes) -> None:
        """Let one that is not needed after all be the next again."""
        self._ahead.appendleft(key)


class Forecast:
    """A tier's books, and beside them what is planned. Not thread-safe; used under the index's lock.

    Victims are named as the tier's policy orders them now, those of a newcomer's own quota first, as when a
    block is stored. ``begin`` must be called each time that the lock was taken.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._gone: dict[bytes, int] = {}
        self._come: dict[bytes, int] = {}
        self._more_bytes = 0
        self._more_of_groups = Counter[tuple[str, str]]()
        self._more_pinned_bytes = 0
        self._orders: dict[int, tuple[EvictionPolicy, _Order]] = {}
        self._refused: dict[bytes, tuple[int, Why]] = {}
        self._is_kept: IsHeld = _nobody
        self._is_spared: IsHeld = _nobody

    def begin(self, is_kept: IsHeld, is_spared: IsHeld) -> None:
        """Note who may not go, and who goes last, from now on."""
        self._is_kept, self._is_spared = self._ledger.kept(is_kept), is_spared
        self._refused = {}

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
        _, order = self._orders.setdefault(id(policy), (policy, self._order(policy)))
        while not is_done():
            victim = order.take(len(self._gone))
            if victim is None:
                return False
            chosen.append((order, victim))
            self._leave(victim)
        return True

    def _leave(self, key: bytes) -> int:
        nbytes = self._gone[key] = self._ledger.held[key]
        self._count(key, -nbytes)
        return nbytes

    def _order(self, policy: EvictionPolicy) -> _Order:
        def victims() -> Iterator[bytes]:
            yield from policy.victims(lambda key: self._is_spared(key) or self._is_kept(key))
            yield from policy.victims(self._is_kept)

        return _Order(victims, self._may_go)

    def _may_go(self, key: bytes) -> bool:
        return key in self._ledger.held and key not in self._gone and not self._is_kept(key)

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
