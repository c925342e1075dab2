"""Loaded blocks on their way into the pool, whose staging memory is kept until they are there."""

from __future__ import annotations

import logging
from collections import deque

from backends.copies import Copy
from backends.device import DevicePool
from engine_adapter.engine.costs import CostBook
from kvstore.clock import Clock
from kvstore.loading import LoadedBlock

_log = logging.getLogger(__name__)


class Landings:
    """Copies of loaded blocks into the pool. Used by the engine's thread alone.

    A block may be used as soon as its copy has begun, for the pool orders computing behind it; whoever
    gave it back meanwhile, the bytes that it is copied from stay until the copy is complete.
    """

    def __init__(self, pool: DevicePool, costs: CostBook, clock: Clock) -> None:
        self._pool = pool
        self._costs = costs
        self._clock = clock
        self._under_way: deque[tuple[Copy, LoadedBlock]] = deque()

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, block: int, loaded: LoadedBlock) -> None:
        """Begin to copy ``loaded``, which is released here, into a private block."""
        try:
            copy = self._pool.write_block(block, loaded.data)
        except BaseException:
            loaded.release()
            raise
        self._under_way.append((copy, loaded))
        self.end_complete()

    def end_complete(self) -> bool:
        """Release what has been copied; says whether there was anything. Copies end in their order."""
        has_ended = False
        while self._under_way and self._under_way[0][0].done():
            self._end_next()
            has_ended = True
        return has_ended

    def end_all(self) -> None:
        """Wait for all copies, and release what they were made from."""
        while self._under_way:
            self._end_next()

    def _end_next(self) -> None:
        copy, loaded = self._under_way.popleft()
        try:
            copy.wait()
            self._costs.note_copy(copy.took_s, self._clock.monotonic_s())
        except Exception:  # noqa: BLE001 - the device broke, which those hear of who compute on it
            _log.exception("a loaded block was not copied")
        finally:
            loaded.release()
