"""Loads of a worker: from the store into vLLM's pool, block after block, given up when they lose."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import Event
from typing import NamedTuple

from engine_adapter.vllm.opening import MOST_ON_WAY
from engine_adapter.vllm.orders import Arrived, GivenUp, LoadOrder, Told
from engine_adapter.vllm.pool import Pool
from kvstore.errors import LeaseExpiredError, StoreClosedError
from kvstore.interface import BlockStore
from kvstore.leases import Hit
from kvstore.loading import Ticket

_GAPS_OF_A_RATE = 4
_GIVEN_UP_IF_SLOWER = 1.1


class _Asked(NamedTuple):
    ticket: Ticket
    tier: str
    asked_s: float


class Load:
    """One request's load on one worker. ``num_here`` leading blocks are in the pool.

    For the worker's thread alone; ``told`` returns where to note what happens, and ``woken`` is set when
    something may have arrived.
    """

    def __init__(
        self, order: LoadOrder, rank: int, store: BlockStore, pool: Pool, deadline_s: float,
        told: Callable[[], Told], woken: Event,
    ) -> None:  # fmt: skip
        self.order = order
        self.num_here = 0
        self._store = store
        self._pool = pool
        self._told = told
        self._woken = woken
        self._began_s = store.now_s()
        self._ends_s = self._began_s + deadline_s
        self._asked: deque[_Asked] = deque()
        self._arrived_s: dict[int, float] = {}
        self._come_s: list[float] = []
        self._num_asked = 0
        self._is_over = False
        self._keys: Sequence[bytes] = order.keys[rank]
        self._hit: Hit = store.lookup(self._keys)
        self._ask()

    def advance(self) -> bool:
        """Take in what has arrived, without waiting. Returns whether the load is over, well or not."""
        while not self._is_over and self._asked and self._asked[0].ticket.done():
            self._take(self._asked.popleft())
            self._ask()
        if not self._is_over and (not self._asked or self._loses(self._store.now_s())):
            self.give_up()
        return self._is_over

    def finish(self) -> None:
        """Wait until the load is over."""
        while not self.advance():
            self._woken.wait(self._patience_left_s())
            self._woken.clear()

    def give_up(self) -> None:
        """End the load; what has not arrived will not. Idempotent."""
        if self._is_over:
            return
        self._is_over = True
        now_s = self._store.now_s()
        for asked in self._asked:
            asked.ticket.abandon()
            self._told().given_up.append(GivenUp(asked.tier, asked.asked_s, now_s, self._pool.block_bytes))
        self._asked.clear()
        self._hit.release()

    def _ask(self) -> None:
        while self._num_asked < len(self._keys) and len(self._asked) < MOST_ON_WAY and not self._is_over:
            tier, index = self._hit.tiers[self._num_asked], self._num_asked
            if tier is None:
                break
            asked_s = self._store.now_s()
            try:
                ticket = self._store.load(self._hit, index, self._ends_s, partial(self._note, index))
            except (LeaseExpiredError, StoreClosedError):
                break
            self._asked.append(_Asked(ticket, tier, asked_s))
            self._num_asked += 1

    def _note(self, index: int) -> None:
        """Note when a block came; on a transfer thread."""
        self._arrived_s[index] = now_s = self._store.now_s()
        self._come_s.append(now_s)
        self._woken.set()

    def _take(self, asked: _Asked) -> None:
        block = asked.ticket.take()
        began_s = self._store.now_s()
        arrived_s = self._arrived_s.pop(self.num_here, asked.asked_s)
        try:
            if block is None or len(block.data) != self._pool.block_bytes:
                self.give_up()
                return
            self._pool.write(self.order.block_ids[self.num_here], block.data)
        finally:
            if block is not None:
                block.release()
        self._told().arrived.append(Arrived(asked.tier, asked.asked_s, arrived_s, self._pool.block_bytes))
        self._told().copies_s.append(self._store.now_s() - began_s)
        self.num_here += 1

    def _loses(self, now_s: float) -> bool:
        """Say whether computing what is not here will come first, or would have."""
        if now_s >= self._ends_s:
            return True
        worth_s, patience_s, num_come = self.order.worth_s, self.order.patience_s, self._num_come
        if not worth_s:
            return False
        if now_s - self._began_s > worth_s[num_come] + patience_s:
            return True
        return self._left_s(now_s) > _GIVEN_UP_IF_SLOWER * (worth_s[-1] - worth_s[num_come]) + patience_s

    def _left_s(self, now_s: float) -> float:
        """Return how long the rest takes if blocks come as the last few did; 0: none has come."""
        last_s = self._come_s[-_GAPS_OF_A_RATE - 1 :]
        if not last_s:
            return 0.0
        gap_s = (last_s[-1] - last_s[0]) / max(1, len(last_s) - 1)
        waited_s = now_s - last_s[-1]
        return max(gap_s, waited_s / 2) * (len(self._keys) - self._num_come)

    @property
    def _num_come(self) -> int:
        """How many blocks have come, in any order: those before them are next."""
        return max(self.num_here, len(self._come_s))

    def _patience_left_s(self) -> float:
        now_s = self._store.now_s()
        left_s = self._ends_s - now_s
        if self.order.worth_s:
            due_s = self.order.worth_s[self._num_come] + self.order.patience_s
            left_s = min(left_s, self._began_s + due_s - now_s)
        return max(0.0005, min(left_s, 0.05))
