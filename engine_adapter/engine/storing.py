"""Blocks that wait to be stored, so that no step waits for the storing of what it computed."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from backends.copies import Copy
from backends.device import DevicePool
from kvstore.namespace import Namespace
from kvstore.store import TieredStore
from kvstore.storing import Reservation

_log = logging.getLogger(__name__)

_A_STEP = 2
_AN_IDLE_TURN = 8
_MOST = 256


@dataclass(frozen=True, slots=True)
class Storable:
    """A published block to be stored; ``first_token`` is its position in the prompt."""

    namespace: Namespace
    key: bytes
    parent: bytes
    first_token: int
    ttl_s: float | None


class _Leaving(NamedTuple):
    """A block on its way into the memory reserved for it."""

    block: int
    reservation: Reservation
    copy: Copy


class StoreQueue:
    """Copies published blocks into the store: a few after each step, more when there is nothing else.

    ::

        step   |== prefill ==|== prefill ==|= decode =|= decode =|= decode =|   idle
        begun               2             2          2          2          2   8 8 8 …

    A block that waits or is being copied has a reference here, so that it is neither evicted nor written
    meanwhile; it is visible in the store when its copy is complete. What exceeds the bound (a quarter of the
    pool at most, as many again being copied) is begun at once. Used by the engine's thread alone.
    """

    def __init__(self, pool: DevicePool, store: TieredStore) -> None:
        self._pool = pool
        self._store = store
        self._most = min(_MOST, pool.num_blocks // 4)
        self._waiting: deque[tuple[Storable, int]] = deque()
        self._leaving: deque[_Leaving] = deque()

    @property
    def num_leaving(self) -> int:
        """Blocks that are being copied."""
        return len(self._leaving)

    def add(self, storable: Storable) -> None:
        """Queue a published block."""
        block = self._pool.acquire(storable.key)
        if block is not None:
            self._waiting.append((storable, block))

    def store_some(self, *, is_idle: bool) -> bool:
        """Begin to store the next few blocks; says whether there were any, or copies are complete now."""
        has_ended = self._end_complete()
        num = max(_AN_IDLE_TURN if is_idle else _A_STEP, len(self._waiting) - self._most)
        num = min(num, len(self._waiting))
        self._begin(num)
        return has_ended or num > 0

    def store_all(self) -> None:
        """Store every block that waits; no copy is under way then."""
        self._begin(len(self._waiting))
        while self._leaving:
            self._end_next()

    def make_available(self, num: int, *, waits: bool) -> None:
        """Begin to store every block that waits; wait for copies while ``num`` blocks are not available."""
        self._end_complete()
        self._begin(len(self._waiting))
        while waits and self._leaving and self._pool.num_available < num:
            self._end_next()

    def drop_all(self) -> None:
        """Store nothing of what waits or is being copied; no copy is under way then."""
        while self._leaving:
            self._end_next(is_wanted=False)
        while self._waiting:
            self._pool.release([self._waiting.popleft()[1]])

    def _begin(self, num: int) -> None:
        for _ in range(num):
            storable, block = self._waiting.popleft()
            leaving = None
            with _logged():
                leaving = self._begin_copy(storable, block)
            if leaving is None:
                self._pool.release([block])
                continue
            self._leaving.append(leaving)
            self._end_complete()
            if len(self._leaving) > self._most:
                self._end_next()

    def _begin_copy(self, storable: Storable, block: int) -> _Leaving | None:
        if self._store.ended((storable.key,)):  # while it waited; stored now it would begin another life
            return None
        reservation = self._store.reserve(
            storable.namespace,
            storable.key,
            storable.parent,
            self._pool.shape.block_bytes,
            ttl_s=storable.ttl_s,
            first_token=storable.first_token,
        )
        if reservation is None:
            return None
        try:
            return _Leaving(block, reservation, self._pool.read_block(block, reservation.view))
        except BaseException:
            reservation.abort()
            raise

    def _end_complete(self) -> bool:
        """Publish what has been copied; says whether there was anything. Copies end in their order."""
        has_ended = False
        while self._leaving and self._leaving[0].copy.done():
            self._end_next()
            has_ended = True
        return has_ended

    def _end_next(self, *, is_wanted: bool = True) -> None:
        """Wait for the oldest copy, and publish it if it ``is_wanted``."""
        block, reservation, copy = self._leaving.popleft()
        is_copied = False
        with _logged():
            copy.wait()
            is_copied = True
        with _logged():
            if is_copied and is_wanted:
                reservation.commit()
            else:
                reservation.abort()
        self._pool.release([block])


@contextmanager
def _logged() -> Iterator[None]:
    """Let an error inside cost this block's storing and nothing else."""
    try:
        yield
    except Exception:  # noqa: BLE001 - whatever it is
        _log.exception("a block could not be stored")
