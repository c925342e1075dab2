"""Blocks that wait to be stored, so that no step waits for the storing of what it computed."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

from backends.device import DevicePool
from kvstore.namespace import Namespace
from kvstore.store import TieredStore

_log = logging.getLogger(__name__)

_A_STEP = 2
_AN_IDLE_TURN = 8
_MAX_WAITING = 256


@dataclass(frozen=True, slots=True)
class Storable:
    """A published block to be stored; ``first_token`` is its position in the prompt."""

    namespace: Namespace
    key: bytes
    parent: bytes
    first_token: int
    ttl_s: float | None


class StoreQueue:
    """Copies published blocks into the store: a few after each step, more when there is nothing else.

    ::

        step   |== prefill ==|== prefill ==|= decode =|= decode =|= decode =|   idle
        stored              2             2          2          2          2   8 8 8 …

    A waiting block has a reference here, so that it is neither evicted nor written meanwhile. What
    exceeds the bound (a quarter of the pool at most) is stored at once. Used by the engine's thread
    alone.
    """

    def __init__(self, pool: DevicePool, store: TieredStore) -> None:
        self._pool = pool
        self._store = store
        self._max_waiting = min(_MAX_WAITING, pool.num_blocks // 4)
        self._waiting: deque[tuple[Storable, int]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, storable: Storable) -> None:
        """Queue a published block."""
        block = self._pool.acquire(storable.key)
        if block is not None:
            self._waiting.append((storable, block))

    def store_some(self, *, is_idle: bool) -> bool:
        """Store the next few blocks; says whether there were any."""
        num = max(_AN_IDLE_TURN if is_idle else _A_STEP, len(self._waiting) - self._max_waiting)
        num = min(num, len(self._waiting))
        for _ in range(num):
            self._store_next()
        return num > 0

    def store_all(self) -> None:
        """Store every block that waits."""
        while self._waiting:
            self._store_next()

    def _store_next(self) -> None:
        storable, block = self._waiting.popleft()
        try:
            self._copy(storable, block)
        except Exception:  # noqa: BLE001 - whatever it is, it costs this block's storing and nothing else
            _log.exception("a block could not be stored")
        finally:
            self._pool.release([block])

    def _copy(self, storable: Storable, block: int) -> None:
        reservation = self._store.reserve(
            storable.namespace,
            storable.key,
            storable.parent,
            self._pool.shape.block_bytes,
            ttl_s=storable.ttl_s,
            first_token=storable.first_token,
        )
        if reservation is None:
            return
        try:
            self._pool.read_block(block, reservation.view)
        except BaseException:
            reservation.abort()
            raise
        reservation.commit()
