"""Blocks that wait to be stored, so that no step waits for the storing of what it computed."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from backends.copies import Copy
from backends.device import DevicePool
from kvstore.hints import Hint
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


class _Waiting(NamedTuple):
    """A block that waits, the ``number``-th of all."""

    number: int
    storable: Storable
    block: int


class _Leaving(NamedTuple):
    """A block on its way into the memory reserved for it."""

    number: int
    block: int
    reservation: Reservation
    copy: Copy


class _Remark(NamedTuple):
    """What is said of a prompt, once all blocks before the ``number``-th are stored."""

    number: int
    keys: Sequence[bytes]
    hint: Hint


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
        self._waiting: deque[_Waiting] = deque()
        self._leaving: deque[_Leaving] = deque()
        self._remarks: deque[_Remark] = deque()
        self._num_added = 0

    @property
    def num_leaving(self) -> int:
        """Blocks that are being copied."""
        return len(self._leaving)

    def add(self, storable: Storable) -> None:
        """Queue a published block."""
        block = self._pool.acquire(storable.key)
        if block is not None:
            self._waiting.append(_Waiting(self._num_added, storable, block))
            self._num_added += 1

    def tell(self, keys: Sequence[bytes], hint: Hint) -> None:
        """Pass a hint on to the pool and the store, behind all blocks that were queued before."""
        self._remarks.append(_Remark(self._num_added, keys, hint))
        self._tell_due()

    def store_some(self, *, is_idle: bool) -> bool:
        """Begin to store the next few blocks; says whether there were any, or copies are complete now."""
        has_ended = self._end_complete()
        num = max(_AN_IDLE_TURN if is_idle else _A_STEP, len(self._waiting) - self._most)
        num = min(num, len(self._waiting))
        self._begin(num)
        self._tell_due()
        return has_ended or num > 0

    def store_all(self) -> None:
        """Store every block that waits; no copy is under way then."""
        self._begin(len(self._waiting))
        while self._leaving:
            self._end_next()
        self._tell_due()

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
            self._pool.release([self._waiting.popleft().block], is_used=False)
        self._remarks.clear()

    def _begin(self, num: int) -> None:
        for _ in range(num):
            waiting = self._waiting.popleft()
            leaving = None
            with _logged("a block could not be stored"):
                leaving = self._begin_copy(waiting)
            if leaving is None:
                self._pool.release([waiting.block], is_used=False)
                continue
            self._leaving.append(leaving)
            self._end_complete()
            if len(self._leaving) > self._most:
                self._end_next()

    def _begin_copy(self, waiting: _Waiting) -> _Leaving | None:
        number, storable, block = waiting
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
            return _Leaving(number, block, reservation, self._pool.read_block(block, reservation.view))
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
        _, block, reservation, copy = self._leaving.popleft()
        is_copied = False
        with _logged("a block could not be stored"):
            copy.wait()
            is_copied = True
        with _logged("a block could not be stored"):
            if is_copied and is_wanted:
                reservation.commit()
            else:
                reservation.abort()
        self._pool.release([block], is_used=False)

    def _tell_due(self) -> None:
        """Pass on the hints before which every block is stored."""
        first = self._leaving or self._waiting
        stored_to = first[0].number if first else self._num_added
        while self._remarks and self._remarks[0].number <= stored_to:
            _, keys, hint = self._remarks.popleft()
            with _logged("a hint could not be passed on"):
                self._pool.hear(keys, hint)
                self._store.foresight.hint(keys, hint)


@contextmanager
def _logged(trouble: str) -> Iterator[None]:
    """Let an error inside cost what is done there and nothing else."""
    try:
        yield
    except Exception:  # noqa: BLE001 - whatever it is
        _log.exception(trouble)
