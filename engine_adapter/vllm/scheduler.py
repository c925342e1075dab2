"""The scheduler's side: what is loaded before which step, and what is stored after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from engine_adapter.cost_file import CostFile
from engine_adapter.engine.request import Mode
from engine_adapter.faults import Faults
from engine_adapter.vllm.announcing import Event
from engine_adapter.vllm.deciding import work_of
from engine_adapter.vllm.identity import Scopes, of_scope
from engine_adapter.vllm.keeping import CostKeeper
from engine_adapter.vllm.orders import LoadOrder, Step, StoreOrder, Told
from engine_adapter.vllm.promising import Promise, Promiser
from engine_adapter.vllm.readers import Readers
from engine_adapter.vllm.tracking import Tracked
from kvstore.namespace import Namespace


class SchedulerSide:
    """All requests of one engine. For the scheduler's thread alone."""

    def __init__(
        self, base: Namespace, scopes: Scopes, promiser: Promiser, kept: CostFile, faults: Faults
    ) -> None:
        self.counts = promiser.counts
        self._base = base
        self._scopes = scopes
        self.promiser = promiser
        self._decider = promiser.decider
        self._store = promiser.store
        self._announcer = promiser.announcer
        self._settings = promiser.settings
        self._keeper = CostKeeper(promiser.decider.costs, kept, promiser.store.now_s())
        self._faults = faults
        self._is_off = Mode(self._settings.mode) is Mode.OFF
        self._requests: dict[str, Tracked] = {}
        self._loads: list[LoadOrder] = []
        self._loading: dict[str, LoadOrder] = {}
        self._readers = Readers(base.block_tokens)

    def num_to_load(self, request: Any, num_computed: int) -> tuple[int | None, bool]:
        """Return how many tokens behind ``num_computed`` are to be loaded, and whether asynchronously.

        ``None``: ask again at the next step.
        """
        tracked = self._tracked(request)
        if tracked is None or tracked.bypasses or request.skip_reading_prefix_cache:
            return 0, False
        if self.promiser.is_asking(tracked):
            return None, False
        promise = self.promiser.promised(tracked, num_computed // self._base.block_tokens)
        if not (num_blocks := promise.leading.num_blocks):
            return 0, False
        is_async = self.promiser.is_async(promise)
        return num_blocks * self._base.block_tokens, is_async

    def allocated(self, request: Any, block_ids: Sequence[int], num_external: int) -> None:
        """Note a request's admission, and order the load of what it was promised."""
        tracked = self._requests.get(request.request_id)
        promise = self.promiser.take(request.request_id)
        if tracked is not None and num_external and promise is not None:
            self._order_load(tracked, promise, block_ids, num_external)
        elif tracked is not None:
            tracked.bypasses = False
            tracked.release()
        self._readers.note_admitted(request, block_ids)

    def _order_load(
        self, tracked: Tracked, promise: Promise, block_ids: Sequence[int], num_external: int
    ) -> None:
        first, num = promise.first, num_external // self._base.block_tokens
        request_id, is_async = tracked.request.request_id, self.promiser.is_async(promise)
        order = LoadOrder(
            request_id,
            tracked.keys_between(first, first + num),
            tuple(block_ids[first : first + num]),
            is_async,
            promise.leading.worth_s,
            self._decider.patience_s(promise.leading),
        )
        if not is_async:
            self._readers.note_load(order.block_ids)
        self._loads.append(order)
        self._loading[request_id] = order
        self.counts.count("tokens_loaded", num_external)

    def plan_step(self, output: Any) -> Step:
        """Return the orders of the step that vLLM's scheduler has put together."""
        parts = list(_scheduled(output))
        stores: tuple[StoreOrder, ...] = ()
        if not self._is_off:
            stores = self._faults.caught(lambda: tuple(self._stores(parts, output)), stores)
        loads, self._loads = tuple(self._loads), []
        work = work_of((start, start + num) for _, start, num in parts)
        number = self._decider.note_planned(work, self._store.now_s())
        return Step(number, loads, stores, is_idle=not parts)

    def spoilt(self, failed_ids: set[int]) -> set[int]:
        """Return the blocks that nobody may find, for the last step was to load some that have failed.

        All who computed with them begin again before the first of these.
        """
        return self._readers.undo(failed_ids)

    def note_output(self, finished: Iterable[str], failed_ids: set[int], told: Told) -> None:
        """Note what the workers say of a step that is over."""
        now_s = self._store.now_s()
        self._decider.note_made(told, now_s)
        self._decider.learn_arrivals(self.promiser.prober.arrivals())
        self.counts.add(told.counts)
        if self._announcer is not None:
            self._announcer.stored(told.stored)
        over = set(finished)
        for request_id, order in list(self._loading.items()):
            tracked = self._requests.get(request_id)
            is_failed = not failed_ids.isdisjoint(order.block_ids)
            if is_failed:
                self.counts.count("loads_failed")
            if is_failed or not order.is_async or request_id in over:
                del self._loading[request_id]
                if tracked is not None:
                    tracked.loaded(is_failed=is_failed)
        self._keeper.keep(now_s)

    def ended(self, request: Any) -> None:
        """Note that a request is finished."""
        self.promiser.take(request.request_id)
        tracked = self._requests.pop(request.request_id, None)
        if tracked is not None:
            tracked.release()

    def forget_all(self, generation: str) -> bool:
        """Find nothing any more that was stored before; ``generation`` is a new one. Returns ``True``."""
        self._scopes.generation = generation
        self.promiser.clear()
        for tracked in self._requests.values():
            tracked.release()
        self._requests.clear()
        if self._announcer is not None:
            self._announcer.cleared()
        if not self._settings.is_shared:
            self._store.clear()
        return True

    def take_events(self) -> Sequence[Event]:
        """Return what became of blocks since the last call."""
        return () if self._announcer is None else self._announcer.take()

    def close(self) -> None:
        """Give all leases back, and keep what was learnt of costs."""
        for tracked in self._requests.values():
            tracked.release()
        self.promiser.prober.close()
        self._keeper.close()

    def _tracked(self, request: Any) -> Tracked | None:
        """Return what is known of a request; ``None``: it is left alone."""
        if self._is_off:
            return None
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            scope = self._scopes.of(request)
            if scope is None:
                return None
            ranks = range(self._base.tp_size)
            namespaces = [self._store.own_namespace(of_scope(self._base, scope, rank)) for rank in ranks]
            tracked = self._requests[request.request_id] = Tracked(request, namespaces, scope)
        elif not self._is_what_it_was(tracked):
            return None
        tracked.make_keys()
        return tracked

    def _is_what_it_was(self, tracked: Tracked) -> bool:
        """Say whether a request's adapter is still the one by which its keys were made."""
        return not tracked.request.lora_request or self._scopes.of(tracked.request) == tracked.scope

    def _stores(self, parts: Iterable[tuple[str, int, int]], output: Any) -> Iterator[StoreOrder]:
        """Yield what is to be stored once the step has computed ``parts``."""
        step = self._base.block_tokens
        for request_id, start, num in parts:
            tracked = self._requests.get(request_id)
            if tracked is None:
                continue
            # A load that failed has had it begin again.
            first = min(tracked.num_offered, start // step)
            end = min(start + num, tracked.request.num_tokens) // step
            tracked.num_offered = max(first, end)
            if end <= first or not self._is_what_it_was(tracked):
                continue
            tracked.make_keys()
            block_ids = output.kv_connector_block_state.get_block_ids(request_id)
            if block_ids is not None:
                yield from self._orders(tracked, first, end, block_ids[0])

    def _orders(
        self, tracked: Tracked, first: int, end: int, block_ids: Sequence[int]
    ) -> Iterator[StoreOrder]:
        """Yield an order for each run of blocks that the store did not have when it was asked."""
        for start, stop in tracked.runs_to_store(first, end):
            if self._announcer is not None:
                self._announcer.ordered(tracked, start, stop)
            yield StoreOrder(
                tracked.request.request_id,
                tracked.namespaces,
                tracked.keys_between(start, stop),
                tracked.parents_of(start),
                tuple(block_ids[start:stop]),
                start * self._base.block_tokens,
                tracked.is_compared,
            )


def _scheduled(output: Any) -> Iterator[tuple[str, int, int]]:
    """Yield each request of a step, the position it computes from, and how many sure tokens it computes."""
    computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    for request_id, num in output.num_scheduled_tokens.items():
        num_drafted = len(output.scheduled_spec_decode_tokens.get(request_id, ()))
        yield request_id, computed[request_id], num - num_drafted
