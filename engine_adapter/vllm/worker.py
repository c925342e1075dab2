"""The worker's side: moves blocks between vLLM's pool and the store, as the scheduler's side orders."""

from __future__ import annotations

from functools import partial
from threading import Event

from engine_adapter.faults import Faults
from engine_adapter.vllm.loads import Load
from engine_adapter.vllm.orders import LoadOrder, Step, StoreOrder, Told
from engine_adapter.vllm.pool import Pool
from engine_adapter.vllm.settings import AdapterSettings
from kvstore.errors import StoreClosedError
from kvstore.interface import BlockStore

_COMPARE_S = 1.0
_IDLE_S = 0.01
_LOOK_S = 0.002


class WorkerSide:
    """One worker, of one tensor-parallel rank. For vLLM's thread alone."""

    def __init__(self, store: BlockStore, pool: Pool, rank: int, settings: AdapterSettings) -> None:
        self.pool = pool
        self._store = store
        self._rank = rank
        self._settings = settings
        self._loads: dict[str, Load] = {}
        self._unbegun: set[str] = set()
        self._is_idle = False
        self._failed: set[int] = set()
        self._spoilt_step = 0
        self._told = Told()
        self._woken = Event()

    def start_loads(self, step: Step, faults: Faults) -> None:
        """Begin the loads of a step. Blocks for those that its own forward pass needs."""
        self._told.number = step.number
        began_s = self._store.now_s()
        for order in step.loads:
            load = faults.caught(partial(self._begun, order), None)
            if load is None:
                self._note_failed(order, 0)
                self._unbegun.update([order.request_id] if order.is_async else [])
            elif order.is_async:
                self._loads[order.request_id] = load
            else:
                faults.caught(load.finish, None)
                load.give_up()
                self._note_failed(order, load.num_here)
        if any(not order.is_async for order in step.loads):
            self._told.waited_s += self._store.now_s() - began_s

    def store_blocks(self, step: Step) -> None:
        """Store what a step has computed, unless it may have computed with blocks that failed to load."""
        self._told.number = step.number
        self._is_idle = step.is_idle
        if step.number == self._spoilt_step:
            return
        compare_until_s = self._store.now_s() + _COMPARE_S
        for order in step.stores:
            self._store_or_compare(order, compare_until_s)

    def finished_loads(self, ended: set[str], faults: Faults) -> set[str]:
        """Return the requests whose loads are over since the last call; those of ``ended`` are given up."""
        over, self._unbegun = self._unbegun, set()
        if self._is_idle and self._loads and not over and not ended:
            # vLLM has nothing else to do, and its asking again and again keeps the loads from coming.
            self._await_loads(faults)
        for request_id, load in list(self._loads.items()):
            if request_id in ended:
                load.give_up()
            if faults.caught(load.advance, True):
                load.give_up()
                over.add(request_id)
                del self._loads[request_id]
                if request_id not in ended:
                    self._note_failed(load.order, load.num_here)
        return over

    def take_failed(self) -> set[int]:
        """Return the pool's blocks that were to be loaded since the last call and were not."""
        failed, self._failed = self._failed, set()
        return failed

    def take_told(self, num_faults: int) -> Told:
        """Return what there is to tell since the last call."""
        if num_faults:
            self._told.count("faults", num_faults)
        told, self._told = self._told, Told(self._told.number)
        return told

    def close(self) -> None:
        """Give up what is on its way."""
        for load in self._loads.values():
            load.give_up()
        self._loads.clear()

    def _await_loads(self, faults: Faults) -> None:
        """Wait a moment, at most until a load is over."""
        ends_s = self._store.now_s() + _IDLE_S
        while (left_s := ends_s - self._store.now_s()) > 0:
            if any(faults.caught(load.advance, True) for load in self._loads.values()):
                return
            self._woken.wait(min(left_s, _LOOK_S))
            self._woken.clear()

    def _begun(self, order: LoadOrder) -> Load:
        deadline_s = self._settings.load_deadline_s
        return Load(order, self._rank, self._store, self.pool, deadline_s, lambda: self._told, self._woken)

    def _note_failed(self, order: LoadOrder, num_here: int) -> None:
        failed = order.block_ids[num_here:]
        if failed:
            self._failed.update(failed)
            if not order.is_async:
                self._spoilt_step = self._told.number
            self._told.count("blocks_not_loaded", len(failed))

    def _store_or_compare(self, order: StoreOrder, compare_until_s: float) -> None:
        namespace, keys = order.namespaces[self._rank], order.keys[self._rank]
        parent = order.parents[self._rank]
        step = namespace.block_tokens
        for index, (key, block_id) in enumerate(zip(keys, order.block_ids, strict=True)):
            if order.is_compared:
                self._compare(key, block_id, compare_until_s - self._store.now_s())
            memory = self._store.reserve(
                namespace, key, parent, self.pool.block_bytes,
                first_token=order.first_token + index * step, ttl_s=self._settings.ttl_s,
            )  # fmt: skip
            parent = key
            if memory is None:
                continue
            try:
                self.pool.read(block_id, memory.view)
            except BaseException:
                memory.abort()
                raise
            memory.commit()
            self._told.count("blocks_stored")
            self._told.stored.append(key)

    def _compare(self, key: bytes, block_id: int, timeout_s: float) -> None:
        if timeout_s <= 0:
            return
        stored = memoryview(bytearray(self.pool.block_bytes))
        try:
            if not self._store.get_into(key, stored, timeout_s):
                return
        except StoreClosedError:
            return
        self._told.count("blocks_compared")
        if not self.pool.is_close(block_id, stored):
            self._told.count("blocks_wrong")
            self._store.quarantine(key)
