"""What was decided about the last requests, and what came of it: kept for those who ask why."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

from engine_adapter.engine.costs import CostBook
from engine_adapter.engine.events import Planned, Reason, Usage
from engine_adapter.engine.misses import Miss, Relatives, first_miss, traced
from engine_adapter.engine.reporting import CostsNow
from engine_adapter.engine.request import Mode
from engine_adapter.engine.sequence import Sequence
from kvstore.absences import Cause
from kvstore.clock import Clock
from kvstore.leases import Hit
from kvstore.store import TieredStore
from kvstore.tier import DEVICE
from policies.cost_model import Work

_MOST_KEPT = 256


@dataclass(frozen=True, slots=True)
class Account:
    """One request that has ended. It holds neither tokens nor text nor salts.

    ``number`` counts requests from the engine's start, ``at_ms`` is when it ended (epoch milliseconds),
    ``namespace`` a name for people. ``planned`` is ``None`` when there was nothing to load, and
    ``reason`` says why, or why the plan was what it was. ``miss`` is the first block that no tier had.
    ``tokens_by_source`` and ``ttft_s`` are the usage's, ``tenant`` is the request's.
    """

    number: int
    at_ms: int
    namespace: str
    mode: Mode
    ended: Reason
    prompt_tokens: int
    tokens_by_source: Mapping[str, int]
    ttft_s: float | None
    planned: Planned | None
    miss: Miss | None
    reason: str
    tenant: str = ""


class Accounts:
    """The accounts of the last requests, and what things cost when the last one ended.

    Written by the engine's thread; ``recent`` and ``costs`` are for any.
    """

    def __init__(
        self,
        store: TieredStore,
        clock: Clock,
        book: CostBook,
        relatives: Relatives,
        block_tokens: int,
        chunk_tokens: int,
    ) -> None:
        """``chunk_tokens`` is the most that a step computes."""
        self._store = store
        self._clock = clock
        self._book = book
        self._relatives = relatives
        self._block_tokens = block_tokens
        self._chunk_tokens = chunk_tokens
        self._kept: deque[Account] = deque(maxlen=_MOST_KEPT)
        self._lock = Lock()
        self.costs = CostsNow()
        self.note_costs()

    def recent(self) -> list[Account]:
        """Return the accounts of the last requests, the latest first."""
        with self._lock:
            return list(reversed(self._kept))

    def looked_up(self, sequence: Sequence, hit: Hit) -> None:
        """Note what is missing; never blocks. What a medium turns out to have is missing no more."""
        miss = sequence.miss
        if miss is None or hit.tiers[miss.index] not in {None, DEVICE}:
            sequence.miss = first_miss(self._store, hit.keys, hit.tiers, self._block_tokens)
            if _is_all_unknown(sequence.miss):
                self._relatives.refresh_behind()

    def ended(self, sequence: Sequence, reason: Reason, usage: Usage) -> None:
        """Keep the account of a request, if it ever began; what goes on from another's prompt has none."""
        if sequence.times.admitted_s is None or sequence.is_fork:
            return
        self.note_costs()
        miss = self._traced(sequence)
        account = Account(
            number=sequence.number,
            at_ms=self._clock.wall_ms(),
            namespace=sequence.namespace.label if sequence.keys else "",
            mode=sequence.mode,
            ended=reason,
            prompt_tokens=usage.prompt_tokens,
            tokens_by_source=usage.tokens_by_source,
            ttft_s=usage.ttft_s,
            planned=usage.planned,
            miss=miss,
            reason=usage.planned.reason if usage.planned else self._why_no_plan(sequence, miss),
            tenant=sequence.request.tenant,
        )
        with self._lock:
            self._kept.append(account)

    def note_costs(self) -> None:
        """Take note of what things cost now."""
        compute = self._book.compute()
        whole_s = compute.of(Work.prefill(0, self._chunk_tokens)) if compute else 0.0
        rate = self._chunk_tokens / whole_s if whole_s > 0 else None
        self.costs = CostsNow(rate, self._book.loads(self._clock.monotonic_s()))

    def _traced(self, sequence: Sequence) -> Miss | None:
        """Look for the tokens in the tenant's other namespaces, where nothing at all was found."""
        miss = sequence.miss
        if miss is None or not _is_all_unknown(miss):
            return miss
        ours, prompt = sequence.namespace, sequence.tokens[: sequence.num_prompt]
        return traced(miss, ours, self._relatives.of(ours), prompt, self._store.peek)

    def _why_no_plan(self, sequence: Sequence, miss: Miss | None) -> str:
        if sequence.mode is Mode.OFF:
            return "the mode is off: there is no cache"
        if sequence.request.sampling.prompt_logprobs is not None:
            return "the request asks how likely its prompt is: all of it is computed"
        if not sequence.cache.reads:
            return "the request asks for no lookup"
        if sequence.num_prompt < self._block_tokens:
            return f"the prompt is shorter than a block of {self._block_tokens} tokens"
        if miss is None:
            return "nothing to load: the device has every block"
        return f"nothing to load: {miss.sentence()}"


def _is_all_unknown(miss: Miss | None) -> bool:
    return miss is not None and miss.index == 0 and miss.cause is Cause.NEVER_STORED
