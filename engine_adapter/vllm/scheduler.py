"""The scheduler's side: what is looked up, how much of it is loaded, and what is stored after which step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from engine_adapter.cost_file import CostFile
from engine_adapter.engine.request import Mode
from engine_adapter.vllm.counts import Counts
from engine_adapter.vllm.deciding import Decider, work_of
from engine_adapter.vllm.faults import Faults
from engine_adapter.vllm.identity import Scopes, of_scope
from engine_adapter.vllm.orders import LoadOrder, Step, StoreOrder, Told
from engine_adapter.vllm.settings import AdapterSettings
from engine_adapter.vllm.tracking import Tracked
from kvstore.interface import BlockStore
from kvstore.namespace import Namespace
from policies.leading import Leading


class _Promise(NamedTuple):
    """What a request was promised when it was looked up: blocks from ``first`` on."""

    first: int
    leading: Leading
    tiers: Sequence[str | None]
    until_s: float


class SchedulerSide:
    """All requests of one engine. For the scheduler's thread alone."""

    def __init__(
        self, store: BlockStore, base: Namespace, scopes: Scopes, decider: Decider, settings: AdapterSettings,
        kept: CostFile, faults: Faults,
    ) -> None:  # fmt: skip
        self.counts = Counts()
        self._store = store
        self._base = base
        self._scopes = scopes
        self._decider = decider
        self._settings = settings
        self._kept = kept
        self._faults = faults
        self._mode = Mode(settings.mode)
        self._requests: dict[str, Tracked] = {}
        self._promises: dict[str, _Promise] = {}
        self._loads: list[LoadOrder] = []
        self._loading: dict[str, LoadOrder] = {}
        self._num_failures = 0
        self._verify_owed = 0.0

    def num_to_load(self, request: Any, num_computed: int) -> tuple[int, bool]:
        """Return how many tokens behind ``num_computed`` are to be loaded, and whether asynchronously."""
        tracked = self._tracked(request)
        if tracked is None or tracked.bypasses or request.skip_reading_prefix_cache:
            return 0, False
        promise = self._promised(tracked, num_computed // self._base.block_tokens)
        num_blocks = promise.leading.num_blocks
        if not num_blocks:
            return 0, False
        return num_blocks * self._base.block_tokens, self._is_async(promise)

    def allocated(self, request: Any, block_ids: Sequence[int], num_external: int) -> None:
        """Note a request's admission, and order the load of what it was promised."""
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            return
        promise = self._promises.pop(request.request_id, None)
        if not num_external or promise is None:
            tracked.bypasses = False
            tracked.release()
            return
        first, num = promise.first, num_external // self._base.block_tokens
        order = LoadOrder(
            request.request_id,
            tracked.keys_between(first, first + num),
            tuple(block_ids[first : first + num]),
            self._is_async(promise),
            promise.leading.worth_s,
            self._decider.patience_s(promise.leading),
        )
        self._loads.append(order)
        self._loading[request.request_id] = order
        self.counts.count_loads(promise.tiers[first : first + num], self._base.block_tokens)

    def plan_step(self, output: Any) -> Step:
        """Return the orders of the step that vLLM's scheduler has put together."""
        parts = list(_scheduled(output))
        stores: tuple[StoreOrder, ...] = ()
        if self._mode is not Mode.OFF:
            stores = self._faults.caught(lambda: tuple(self._stores(parts, output)), stores)
        loads, self._loads = tuple(self._loads), []
        work = work_of((start, start + num) for _, start, num in parts)
        number = self._decider.note_planned(work, self._store.now_s())
        return Step(number, loads, stores, self._num_failures)

    def note_output(self, finished: Iterable[str], failed_ids: set[int], told: Told) -> None:
        """Note what the workers say of a step that is over."""
        self._decider.note_made(told, self._store.now_s())
        self.counts.add(told.counts)
        over = set(finished)
        for request_id, order in list(self._loading.items()):
            tracked = self._requests.get(request_id)
            is_failed = not failed_ids.isdisjoint(order.block_ids)
            if tracked is not None and is_failed:
                tracked.bypasses = True
                self.counts.count("loads_failed")
            if is_failed or not order.is_async or request_id in over:
                del self._loading[request_id]
                if tracked is not None:
                    tracked.release()
        self._num_failures += bool(failed_ids)

    def ended(self, request: Any) -> None:
        """Note that a request is finished."""
        self._promises.pop(request.request_id, None)
        tracked = self._requests.pop(request.request_id, None)
        if tracked is not None:
            tracked.release()

    def forget_all(self, generation: str) -> None:
        """Find nothing any more that was stored before; ``generation`` is a new one."""
        self._scopes.generation = generation
        self._promises.clear()
        for tracked in self._requests.values():
            tracked.release()
        self._requests.clear()
        if not self._settings.is_shared:
            self._store.clear()

    def close(self) -> None:
        """Give all leases back, and keep what was learnt of costs."""
        for tracked in self._requests.values():
            tracked.release()
        self._kept.write(self._decider.costs.known())

    def _tracked(self, request: Any) -> Tracked | None:
        if self._mode is Mode.OFF:
            return None
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            scope = self._scopes.of(request)
            if scope is None:
                return None
            namespaces = [
                self._store.own_namespace(of_scope(self._base, scope, rank))
                for rank in range(self._base.tp_size)
            ]
            tracked = self._requests[request.request_id] = Tracked(request, scope, namespaces)
        tracked.make_keys()
        return tracked

    def _promised(self, tracked: Tracked, num_ready: int) -> _Promise:
        """Return what a request is promised; asked again soon, the same."""
        request, now_s = tracked.request, self._store.now_s()
        promise = self._promises.get(request.request_id)
        if promise is not None and promise.first == num_ready and now_s < promise.until_s:
            return promise
        tracked.release()
        tiers = self._found(tracked)
        leading = self._decider.decide(tiers, num_ready, request.num_tokens, now_s)
        leading = self._allowed(tracked, leading)
        ends_s = min((hit.deadline_s for hit in tracked.hits), default=now_s)
        promise = _Promise(num_ready, leading, tiers, (now_s + ends_s) / 2)
        self._promises[request.request_id] = promise
        if not leading.num_blocks:
            tracked.release()
        return promise

    def _found(self, tracked: Tracked) -> list[str | None]:
        """Return where each block is that all ranks have; the lookups' leases are kept."""
        tracked.hits = [self._store.lookup(keys, ttl_s=self._settings.ttl_s) for keys in tracked.keys]
        by_block = list(zip(*(hit.tiers for hit in tracked.hits), strict=True))
        tracked.present = {index for index, tiers in enumerate(by_block) if None not in tiers}
        order = self._store.tier_names
        self.counts.count_lookup(len(by_block), len(tracked.present))
        return [
            max(tiers, key=lambda tier: order.index(tier) if tier in order else len(order))
            if index in tracked.present
            else None
            for index, tiers in enumerate(by_block)
        ]

    def _allowed(self, tracked: Tracked, leading: Leading) -> Leading:
        """Return what the mode leaves of it."""
        if not leading.num_blocks:
            return leading
        nothing = Leading(0, leading.if_computed_s, leading.if_computed_s)
        if self._mode is Mode.OBSERVE:
            self.counts.count("tokens_observed", leading.num_blocks * self._base.block_tokens)
            return nothing
        if self._mode is Mode.VERIFY:
            self._verify_owed += self._settings.verify_share
            if self._verify_owed >= 1:
                self._verify_owed -= 1
                tracked.is_compared = True
                return nothing
        return leading

    def _is_async(self, promise: _Promise) -> bool:
        loading = self._settings.loading
        if self._base.tp_size > 1 or loading == "async":
            return True
        tiers = promise.tiers[promise.first : promise.first + promise.leading.num_blocks]
        return loading == "auto" and (self._settings.is_shared or any(tier != "host" for tier in tiers))

    def _stores(self, parts: Iterable[tuple[str, int, int]], output: Any) -> Iterable[StoreOrder]:
        step = self._base.block_tokens
        for request_id, start, num in parts:
            tracked = self._requests.get(request_id)
            if tracked is None:
                continue
            # A load that failed has had it begin again.
            tracked.num_offered = min(tracked.num_offered, start // step)
            end = min((start + num) // step, tracked.request.num_tokens // step)
            if end <= tracked.num_offered:
                continue
            tracked.make_keys()
            first, tracked.num_offered = tracked.num_offered, end
            block_ids = output.kv_connector_block_state.get_block_ids(request_id)
            if block_ids is not None:
                yield from self._orders(tracked, first, end, block_ids[0])

    def _orders(
        self, tracked: Tracked, first: int, end: int, block_ids: Sequence[int]
    ) -> Iterable[StoreOrder]:
        """Yield an order for each run of blocks that the store has not."""
        wanted = [index for index in range(first, end) if tracked.is_compared or index not in tracked.present]
        start = 0
        for at in range(1, len(wanted) + 1):
            if at < len(wanted) and wanted[at] == wanted[at - 1] + 1:
                continue
            run = wanted[start:at]
            yield StoreOrder(
                tracked.request.request_id,
                tracked.namespaces,
                tracked.keys_between(run[0], run[-1] + 1),
                tracked.parents_of(run[0]),
                tuple(block_ids[run[0] : run[-1] + 1]),
                run[0] * self._base.block_tokens,
                tracked.is_compared,
            )
            start = at


def _scheduled(output: Any) -> Iterable[tuple[str, int, int]]:
    """Yield each request of a step, the position it computes from, and how many sure tokens it computes."""
    computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    for request_id, num in output.num_scheduled_tokens.items():
        num_drafted = len(output.scheduled_spec_decode_tokens.get(request_id, ()))
        yield request_id, computed[request_id], num - num_drafted
