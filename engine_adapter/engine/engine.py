"""The engine: takes requests from any thread, and works on them in one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from functools import partial
from queue import SimpleQueue
from threading import Lock
from typing import NewType

from transformers import PreTrainedTokenizerBase

from backends.device import DevicePool
from engine_adapter.engine.accounts import Account, Accounts
from engine_adapter.engine.announcing import Announcer
from engine_adapter.engine.answers import answers_of
from engine_adapter.engine.config import EngineConfig
from engine_adapter.engine.constraints import Constraints
from engine_adapter.engine.costs import CostBook
from engine_adapter.engine.detokenize import TextStreams
from engine_adapter.engine.events import Completion, Event, Finished, OnEvent
from engine_adapter.engine.explaining import Explainer, Explanation
from engine_adapter.engine.loop import Loop
from engine_adapter.engine.misses import Relatives
from engine_adapter.engine.models import LoadedModel
from engine_adapter.engine.namespaces import Namespaces
from engine_adapter.engine.ownership import Loads
from engine_adapter.engine.planner import NamedPolicy, Planner
from engine_adapter.engine.prefix import PrefixCache
from engine_adapter.engine.rechecking import Rechecker
from engine_adapter.engine.reporting import EngineHealth, EngineStatistics
from engine_adapter.engine.request import Mode, Request
from engine_adapter.engine.runner import ModelRunner
from engine_adapter.engine.scheduler import Scheduler
from engine_adapter.engine.sequence import Sequence
from engine_adapter.engine.verifying import Verifier
from engine_adapter.engine.workbench import Workbench
from engine_adapter.engine.worker import Worker
from kvstore.clock import Clock
from kvstore.errors import OverloadedError, PromptTooLongError, RequestError
from kvstore.keys import chain_keys
from kvstore.served import OnServed
from kvstore.store import TieredStore

Handle = NewType("Handle", range)
"""Names an open request, by the numbers of its sequences."""


class Engine:
    """Continues prompts, sharing prefixes through the pool and the store.

    One thread owns the pool and all sequences; callers talk to it through a queue. An error in a
    request ends that request alone. An error in the loop itself ends all of them, and ``health``
    says so. The store stays its maker's to close, after the engine.

    ``mode`` holds for requests that name none; set it, from any thread, for those submitted from then on.
    ``constraints`` compiles what answers must look like; ``rechecker`` audits what is stored in idle time.
    """

    def __init__(
        self,
        model: LoadedModel,
        tokenizer: PreTrainedTokenizerBase,
        pool: DevicePool,
        runner: ModelRunner,
        store: TieredStore,
        reload_policy: NamedPolicy,
        costs: CostBook,
        config: EngineConfig | None = None,
        clock: Clock | None = None,
        on_served: Seq[OnServed] = (),
    ) -> None:
        """``costs`` hears of the store's transfers; it is the engine's from here on.

        ``on_served`` hears of each request that has ended.
        """
        self.config = config = config or EngineConfig()
        self.mode = config.mode
        self.constraints = Constraints(tokenizer, model.vocab_size, model.eos_token_ids)
        self._model = model
        self._pool = pool
        self._runner = runner
        self._clamped_before = runner.num_clamped
        self._clock = clock or Clock()
        self._texts = TextStreams(tokenizer)
        self._worker = Worker("engine")
        loads = Loads(store, costs, self._clock, config.load_deadline_s, self._worker.wake)
        namespaces = Namespaces(model.namespace, model.adapters.digests)
        self._prefix = PrefixCache(pool, store, namespaces, config.lease_s, loads)
        self._scheduler = Scheduler(self._prefix, costs, config, self._clock)
        chunk_tokens = config.max_batched_tokens
        self._planner = Planner(reload_policy, costs, self._clock, pool.shape, chunk_tokens)
        self._verifier = Verifier(pool, store, config.verify_share)
        bench = Workbench(pool, runner, costs, chunk_tokens, is_wanted=config.recheck_share > 0)
        self.rechecker = Rechecker(
            self._prefix, bench, config.recheck_share, config.recheck_memory_bytes, self._clock,
            self._worker.tell,
        )  # fmt: skip
        relatives = Relatives(store, self._clock)
        block_tokens = pool.shape.block_tokens
        self._accounts = Accounts(store, self._clock, costs, relatives, block_tokens, chunk_tokens)
        self._explainer = Explainer(
            self._prefix, self._planner, relatives, self._clock, config.load_deadline_s, self._worker.call
        )
        self._loop = Loop(
            model, runner, self._prefix, self._scheduler, self._planner, self._verifier, self._accounts,
            Announcer(on_served, self._clock, block_tokens), self.rechecker, self._clock,
        )  # fmt: skip
        self._lock = Lock()
        self._num_submitted = 0
        store.watch_device(self._worker.wake)
        self._worker.start(self._loop)

    def submit(self, request: Request, on_event: OnEvent) -> Handle:
        """Queue ``request``; never blocks on its work. Thread-safe.

        ``on_event`` is called on the engine's thread and must be quick: a ``Delta`` for each
        token, then one ``Finished``, by when all the request held is given back; of several answers each
        has its own. If it raises, that answer ends. Raises ``RequestError``, ``PromptTooLongError``,
        ``OverloadedError`` or ``EngineClosedError``.
        """
        self._require_servable(request)
        n, mode = request.sampling.n, request.mode or self.mode
        texts = [self._texts.start(request.sampling.stop) for _ in range(n)]
        with self._lock:
            now_s, number = self._clock.monotonic_s(), self._num_submitted
            num_open = number - self._loop.tally.num_finished
            num_missing = num_open + n - self.config.max_sequences - self.config.max_waiting
            if num_missing > 0:
                retry_after_s = self._loop.departures.next_s(now_s, num_missing)
                raise OverloadedError(self.config.max_waiting, retry_after_s)
            first, *others = (
                Sequence(number + index, request, on_event, text, now_s, mode, index)
                for index, text in enumerate(texts)
            )
            first.forks = others
            self._worker.send(partial(self._loop.add, first))
            self._num_submitted += n
        return Handle(range(number, number + n))

    def cancel(self, handle: Handle) -> None:
        """End a request early, with a ``Finished`` soon; nothing happens when it has ended. Thread-safe."""
        self._worker.tell(partial(self._loop.cancel, handle))

    def stream(self, request: Request) -> Iterator[Event]:
        """Submit ``request`` and return its events as they come; closing the iterator cancels it."""
        events: SimpleQueue[Event] = SimpleQueue()
        return self._events(self.submit(request, events.put), events, request.sampling.n)

    def generate(self, request: Request) -> Completion:
        """Submit ``request`` and block until its answer is whole; the first one where there are several."""
        return self.generate_all(request)[0]

    def generate_all(self, request: Request) -> list[Completion]:
        """Submit ``request`` and block until all its answers are whole; in the order of their index."""
        return answers_of(self.stream(request))

    def model_changed(self) -> None:
        """Take note that the weights in memory were changed: no KV of the old ones is used again.

        Blocks while the weights are read. Requests under way go on without the cache, on what
        they have; call it before new ones are submitted. Change weights while no request is under
        way: a step between the change and this call keeps new KV under the old name. Raises
        ``EngineClosedError``.
        """
        self._worker.call(self._loop.change_model)

    def clear_pool(self) -> None:
        """Drop every block of the device pool that no request uses. Blocks for a step at most."""
        self._worker.call(self._prefix.clear)

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Block until all that was computed is in the store and its lower tiers; says whether it is."""
        self._worker.call(self._prefix.traffic.store_all)
        return self._prefix.store.flush(timeout_s)

    def recent_plans(self) -> list[Account]:
        """Return what was decided about the last requests that ended, the latest first; never blocks."""
        return self._accounts.recent()

    def explain(
        self,
        prompt_ids: Seq[int],
        salt: str = "",
        mode: Mode | None = None,
        lora: str | None = None,
        tenant: str = "",
    ) -> Explanation:
        """Return what would be done with a prompt now and why, without running it. Thread-safe.

        Blocks on the media of tiers, for some seconds at most; the engine goes on meanwhile. Raises
        what ``submit`` raises for a prompt, or ``StoreClosedError``.
        """
        request = Request(prompt_ids, salt=salt, lora=lora, tenant=tenant)
        self._require_servable(request)
        return self._explainer.explain(request, mode or self.mode, len(self._scheduler.waiting))

    def prefix_keys(
        self, prompt_ids: Seq[int], salt: str = "", lora: str | None = None, tenant: str = ""
    ) -> list[bytes]:
        """Return the keys of a prompt's whole blocks, by which the store knows it; shared media are asked.

        Thread-safe. Blocks on the media for some seconds at most. Raises what ``submit`` raises for a prompt,
        or ``StoreClosedError``.
        """
        request = Request(prompt_ids, salt=salt, lora=lora, tenant=tenant)
        self._require_servable(request)
        namespace = self._prefix.namespace_of(request)
        self._prefix.store.register_namespace(namespace)
        keys = chain_keys(namespace.digest, prompt_ids, namespace.block_tokens)
        self._explainer.find(keys)
        return keys

    def statistics(self) -> EngineStatistics:
        """Return counts and what there is now; never blocks."""
        tally = self._loop.tally
        return EngineStatistics(
            num_waiting=len(self._scheduler.waiting),
            num_running=len(self._scheduler.running),
            num_steps=tally.num_steps,
            num_preempted=self._scheduler.num_preempted,
            num_taken_over=self._prefix.num_taken_over,
            completion_tokens=tally.completion_tokens,
            requests=dict(tally.requests),
            tokens_by_source=dict(tally.tokens_by_source),
            saved_s=tally.saved_s,
            num_slower=tally.num_slower,
            plans=dict(tally.plans),
            num_verified=self._verifier.tally.num_compared,
            num_found_wrong=self._verifier.tally.num_wrong,
            num_clamped=self._runner.num_clamped - self._clamped_before - self.rechecker.bench.num_clamped,
            num_blocks=self._pool.num_blocks,
            num_available_blocks=self._pool.num_available,
            costs=self._accounts.costs,
            ttft_by_source=tally.ttft_counts(),
        )

    def health(self) -> EngineHealth:
        """Say whether requests are served; never blocks."""
        reason = self._worker.trouble
        return EngineHealth(not reason, reason)

    def check(self) -> None:
        """Raise ``InvariantError`` unless sequences and pool add up. Blocks for a step at most."""
        self._worker.call(self._loop.check)

    def close(self, deadline_s: float = 10.0) -> bool:
        """Refuse new requests, cancel all others and stop; returns within ``deadline_s``, come what may.

        ``False``: the step under way has not come to its end yet. Idempotent.
        """
        return self._worker.close(deadline_s)

    def _require_servable(self, request: Request) -> None:
        request.require_vocabulary(self._model.vocab_size)
        request.require_adapter(self._model.adapters.digests)
        if request.constraint is not None and request.constraint.compiled_by is not self.constraints:
            raise RequestError("constraint", "was compiled for another engine")
        num_tokens = len(request.prompt_ids)
        longest = self._model.context_tokens - 1
        if num_tokens > longest:
            raise PromptTooLongError(num_tokens, longest, "model's context beside an answer")
        pool_tokens = self._pool.num_blocks * self._pool.shape.block_tokens
        if num_tokens > pool_tokens:
            raise PromptTooLongError(num_tokens, pool_tokens, "device pool")
        self._require_room_for_answers(request)

    def _require_room_for_answers(self, request: Request) -> None:
        """Refuse more answers than could run beside each other."""
        n, block_tokens = request.sampling.n, self._pool.shape.block_tokens
        if n > self.config.max_sequences:
            raise RequestError("n", f"{n} answers exceed the {self.config.max_sequences} that run at a time")
        num_whole, num_rest = divmod(len(request.prompt_ids), block_tokens)
        is_shared = request.cache.writes and (request.mode or self.mode) is not Mode.OFF
        num_shared = num_whole if is_shared else 0
        num_needed = num_shared + n * max(1, num_whole - num_shared + bool(num_rest))
        if n > 1 and num_needed > self._pool.num_blocks:
            raise RequestError(
                "n", f"{n} answers need {num_needed} blocks; the device pool has {self._pool.num_blocks}"
            )

    def _events(self, handle: Handle, events: SimpleQueue[Event], num_open: int) -> Iterator[Event]:
        try:
            while num_open:
                event = events.get()
                num_open -= isinstance(event, Finished)
                yield event
        finally:
            self.cancel(handle)
