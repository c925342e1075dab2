"""The door of LMCache's server: what its controllers submit, and what they are told."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Any, NamedTuple

from lmcache import __version__
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.platform import create_event_notifier

from engine_adapter.faults import Faults
from engine_adapter.lmcache.closeness import is_close
from engine_adapter.lmcache.holdings import Holding, Holdings
from engine_adapter.lmcache.identity import layout_of, layout_of_object
from engine_adapter.lmcache.measured import MEASURED
from engine_adapter.lmcache.opening import capacity_bytes, open_store
from engine_adapter.lmcache.second_tier import Chunk, Kept, SecondTier
from engine_adapter.lmcache.settings import AdapterSettings
from engine_adapter.lmcache.tasks import Tasks
from kvstore.statistics import State

_log = logging.getLogger(__name__)

_CLOSE_S = 10.0
_BYTES_FOR_A_WORKER = 4 << 20


class _Wanted(NamedTuple):
    key: Any
    memory: Any


class PrefixdL2Adapter(L2AdapterInterface):
    """LMCache's chunks in our store, in this process or another. Thread-safe, as its controllers want it.

    Nothing raises after the constructor: a fault is a miss, counted and logged now and then.
    """

    def __init__(self, params: Mapping[str, Any], l1_memory_desc: object = None) -> None:  # noqa: ARG002 - LMCache gives it
        """``params`` are ``AdapterSettings``. Raises ``ConfigError``."""
        settings = AdapterSettings.parse(params)
        super().__init__(max_capacity_bytes=capacity_bytes(settings))
        self._settings = settings
        self._faults = Faults(_log)
        self._store = open_store(settings)
        self._tier = SecondTier(self._store, settings, __version__, is_close)
        self._holdings = Holdings[Any](self._tier.are_here)
        self._telling = RLock()  # so that nobody hears of a chunk's end before its beginning
        self._fds = tuple(create_event_notifier() for _ in range(3))
        store_fd, lookup_fd, load_fd = self._fds
        self._stores = Tasks[Any]("store", settings.num_workers, store_fd.notify)
        self._lookups = Tasks[Any]("lookup", 1, lookup_fd.notify)
        self._loads = Tasks[Any]("load", settings.num_workers, load_fd.notify)
        self._is_closed = False
        MEASURED.add(params, self._tier)

    def get_store_event_fd(self) -> int:
        return int(self._fds[0].fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        return int(self._fds[1].fileno())

    def get_load_event_fd(self) -> int:
        return int(self._fds[2].fileno())

    def submit_store_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        """Store copies of ``objects``, which stay as they are until the task is done."""

        def keep(wanted: _Wanted) -> Kept:
            return self._tier.keep(_chunk(wanted))

        wanted = list(map(_Wanted, keys, objects))
        return self._stores.submit(
            wanted, self._guarded(keep, Kept.REFUSED), Kept.REFUSED,
            lambda kept: self._told_of_stores(wanted, kept), _num_workers_for(objects),
        )  # fmt: skip

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        return self._stores.take_all()

    def submit_lookup_and_lock_task(self, keys: Sequence[Any], group_layout_descs: Mapping[int, Any]) -> int:
        """Look chunks up, and keep those found from going until they are unlocked."""

        def find(keys: Sequence[Any]) -> list[bool]:
            layouts = {
                group: layout_of(desc.shapes, desc.dtypes) for group, desc in group_layout_descs.items()
            }
            found = self._tier.find(keys, layouts)
            lost = [key for key, is_here in zip(keys, found, strict=True) if not is_here]
            self._forget(self._holdings.gone_of(lost))
            return found

        none = [False] * len(keys)
        return self._lookups.submit(
            [list(keys)], self._guarded(find, none), none, lambda found: _bitmap(found[0])
        )

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        return self._lookups.take(task_id)

    def submit_unlock(self, keys: Sequence[Any]) -> None:
        """Unlock each chunk once."""
        self._faults.caught(lambda: self._tier.locks.unlock(keys), None)

    def submit_load_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        """Copy chunks into ``objects``; what is not here, or not in time, is not set in the answer."""

        def load(wanted: _Wanted) -> bool:
            return self._tier.load(_chunk(wanted))

        wanted = list(map(_Wanted, keys, objects))
        return self._loads.submit(
            wanted, self._guarded(load, otherwise=False), False,
            lambda loaded: self._told_of_loads(wanted, loaded), _num_workers_for(objects),
        )  # fmt: skip

    def query_load_result(self, task_id: int) -> Any:
        return self._loads.take(task_id)

    def delete(self, keys: Sequence[Any]) -> None:
        """Remove chunks that are not in use."""

        def delete() -> None:
            held = self._holdings.of(keys)
            unheard = [self._tier.place(key) for key in keys if key not in held]
            places = [*(holding.place for holding in held.values()), *filter(None, unheard)]
            self._tier.delete(places)
            self._forget(self._holdings.gone_of(held))

        self._faults.caught(delete, None)

    def report_status(self) -> dict[str, Any]:
        """Return how the store is, and what was counted."""
        health = self._faults.caught(self._store.health, None)
        return {
            "is_healthy": not self._is_closed and health is not None and health.state is not State.UNHEALTHY,
            "type": type(self).__name__,
            "reason": health.reason if health else "",
            "mode": self._settings.mode,
            "tiers": {}
            if health is None
            else {name: tier.state.value for name, tier in health.tiers.items()},
            "num_locked": len(self._tier.locks),
            "num_held": len(self._holdings),
            "faults": self._faults.num,
            **self._tier.counts,
        }

    def close(self) -> None:
        """Store what is under way, and part with the store; bounded in time, idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        MEASURED.remove(self._tier)
        ends_s = time.monotonic() + self._settings.load_deadline_s + _CLOSE_S
        for tasks in (self._lookups, self._stores, self._loads):
            tasks.close(ends_s - time.monotonic())
        self._faults.caught(self._tier.locks.end, None)
        self._faults.caught(lambda: self._store.close(_CLOSE_S), None)
        for fd in self._fds:
            fd.close()

    def _told_of_stores(self, wanted: Sequence[_Wanted], kept: Sequence[Kept]) -> Any:
        told = [pair for pair in zip(wanted, kept, strict=True) if pair[1] is not Kept.REFUSED]
        here = self._faults.caught(lambda: self._settled([each for each, _ in told]), [False] * len(told))
        stored = [pair for pair, is_here in zip(told, here, strict=True) if is_here]
        num_bytes = sum(int(each.memory.get_size()) for each, what in stored if what is Kept.NEW)
        self._faults.caught(lambda: self._note_stored([each for each, _ in stored]), None)
        is_well = self._settings.mode == "off" or len(stored) == len(wanted)
        return L2StoreResult(is_well, num_bytes)

    def _told_of_loads(self, wanted: Sequence[_Wanted], loaded: Sequence[bool]) -> Any:
        arrived = [each for each, is_here in zip(wanted, loaded, strict=True) if is_here]
        new = [each for each in arrived if not self._holdings.of([each.key])]
        if new:  # of an earlier process, or another one's
            self._faults.caught(lambda: self._note_stored(new), None)
        if arrived:
            self._faults.caught(lambda: self._notify_keys_accessed([each.key for each in arrived]), None)
        return _bitmap(loaded)

    def _settled(self, stored: Sequence[_Wanted]) -> list[bool]:
        places = [self._tier.place(each.key, layout_of_object(each.memory)) for each in stored]
        return self._tier.settle([place for place in places if place is not None])

    def _note_stored(self, stored: Sequence[_Wanted]) -> None:
        """Tell listeners of chunks that are here, and of some that are not any more."""
        with self._telling:
            sizes = [self._size_if_new(each) for each in stored]
            if stored:
                self._notify_keys_stored([each.key for each in stored], sizes)
        self._forget(self._holdings.gone_of_some(len(stored)))

    def _size_if_new(self, wanted: _Wanted) -> int:
        """Return a chunk's length, 0 for one that was counted before."""
        place = self._tier.place(wanted.key, layout_of_object(wanted.memory))
        nbytes = int(wanted.memory.get_size())
        return nbytes if place and self._holdings.add(wanted.key, Holding(place, nbytes)) else 0

    def _forget(self, keys: Sequence[Any]) -> None:
        with self._telling:
            gone = self._holdings.remove(keys)
            if gone:
                self._notify_keys_deleted(list(gone), [holding.nbytes for holding in gone.values()])

    def _guarded(self, do: Callable[[Any], Any], otherwise: Any) -> Callable[[Any], Any]:
        return lambda part: self._faults.caught(lambda: do(part), otherwise)


def _chunk(wanted: _Wanted) -> Chunk:
    data = memoryview(wanted.memory.byte_array).cast("B")
    return Chunk(wanted.key, layout_of_object(wanted.memory), data)


def _num_workers_for(objects: Sequence[Any]) -> int:
    """Return how many threads are worth their while."""
    return 1 + sum(int(memory.get_size()) for memory in objects) // _BYTES_FOR_A_WORKER


def _bitmap(bits: Sequence[bool]) -> Any:
    bitmap = Bitmap(len(bits))
    bitmap.batched_set([index for index, is_set in enumerate(bits) if is_set])
    return bitmap
