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
class _Waiting:
    namespace: Namespace
    key: bytes
    parent: bytes
    ttl_s: float | None
    block: int


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
        self._waiting: deque[_Waiting] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, namespace: Namespace, key: bytes, parent: bytes, ttl_s: float | None) -> None:
        """Queue the published block of ``key``."""
        block = self._pool.acquire(key)
        if block is not None:
            self._waiting.append(_Waiting(namespace, key, parent, ttl_s, block))

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
        waiting = self._waiting.popleft()
        try:
            self._copy(waiting)
        except Exception:  # noqa: BLE001 - whatever it is, it costs this block's storing and nothing else
            _log.exception("a block could not be stored")
        finally:
            self._pool.release([waiting.block])

    def _copy(self, waiting: _Waiting) -> None:
        reservation = self._store.reserve(
            waiting.namespace, waiting.key, waiting.parent, self._pool.shape.block_bytes, ttl_s=waiting.ttl_s
        )
        if reservation is None:
            return
        try:
            self._pool.read_block(waiting.block, reservation.view)
        except BaseException:
            reservation.abort()
            raise
        reservation.commit()
