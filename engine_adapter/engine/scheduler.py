"""Who computes what in the next step, and who waits."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from engine_adapter.engine.config import EngineConfig
from engine_adapter.engine.costs import CostBook
from engine_adapter.engine.forking import fork
from engine_adapter.engine.ownership import Owner
from engine_adapter.engine.pace import Pace, calm_s, decoding
from engine_adapter.engine.prefix import PrefixCache
from engine_adapter.engine.request import CacheUse
from engine_adapter.engine.sequence import Sequence
from kvstore.clock import Clock
from kvstore.errors import InvariantError
from policies.preemption import bring_back_s

_rank = attrgetter("rank")
# Of prompts whose every token is told about: a row of logits is as long as the vocabulary.
_MOST_PROMPT_LOGITS = 128

# Loads come in clumps: so much later than predicted they may still come at any moment.
_LATE_S = 0.05


@dataclass(frozen=True, slots=True)
class Work:
    """Positions ``start`` to ``end`` of one sequence, to be computed in one step."""

    sequence: Sequence
    start: int
    end: int

    @property
    def is_decode(self) -> bool:
        """Whether it is the next token of a prompt that is complete."""
        return self.start >= self.sequence.num_prefill

    @property
    def chooses(self) -> bool:
        """Whether the next token is chosen after it."""
        return self.end == len(self.sequence.tokens)

    @property
    def num_logits(self) -> int:
        """Of how many of its last positions logits are wanted."""
        return self.end - self.start if self.sequence.prompt_logprobs else int(self.chooses)


class Scheduler:
    """By priority, then first come, first served; running sequences decode first, the rest is prefill.

    ::

        add ──> waiting ──admit──> running ──remove──>
                   ^                  │
                   └────preempted─────┘   (one of the last, when no block is left for another)

    Both are in order of rank: priority, then age. Whoever is first of all goes on until it ends. A class of
    worse priority gets what better ones leave; nobody rises by waiting. Used by the engine's thread alone.
    """

    def __init__(self, prefix: PrefixCache, costs: CostBook, config: EngineConfig, clock: Clock) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preempted = 0
        self._prefix = prefix
        self._costs = costs
        self._config = config
        self._clock = clock

    def add(self, sequence: Sequence) -> None:
        """Queue ``sequence`` by its rank."""
        insort(self.waiting, sequence, key=_rank)

    def admit(self) -> Sequence | None:
        """Admit the first in the queue, with the blocks of its prefill; ``None``: not now."""
        if not self.waiting or len(self.running) >= self._config.max_sequences:
            return None
        # One block for each running sequence, lest the newcomer be preempted at once.
        if not self._prefix.attach(self.waiting[0], num_spare=len(self.running)):
            return None
        sequence = self.waiting.pop(0)
        insort(self.running, sequence, key=_rank)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Take ``sequence`` out, wherever it is, and give back all it holds."""
        to_be_forked = (one.forks for one in (*self.running, *self.waiting))
        for place in (self.running, self.waiting, *to_be_forked):
            if sequence in place:
                place.remove(sequence)
        self._prefix.detach(sequence)

    def fork(self, sequence: Sequence) -> list[Sequence]:
        """Let the further answers to a complete prompt run from where it ends; returns those that do.

        Those for which there is no room now wait for it as others do, and then share what is cached.
        """
        forked = []
        while sequence.forks:
            other = sequence.forks.pop(0)
            is_free = len(self.running) < self._config.max_sequences
            if is_free and fork(self._prefix, sequence, other, num_spare=len(self.running)):
                insort(self.running, other, key=_rank)
                forked.append(other)
            else:
                self.add(other)
        return forked

    def make_room(self) -> list[Sequence]:
        """Give each decoding sequence a block for its next token, preempting others if need be.

        Returns the sequences that cannot go on: they need more blocks than there are.
        """
        exhausted = []
        for sequence in list(self.running):
            if not sequence.is_decoding:
                continue
            if self._prefix.blocks_for(len(sequence.tokens)) > self._prefix.pool.num_blocks:
                exhausted.append(sequence)
                continue
            while sequence in self.running and not self._prefix.grow(sequence):
                self._preempt(self._victim())
        return exhausted

    def plan(self) -> list[Work]:
        """Return the work of the next step, at most ``max_batched_tokens`` in all."""
        works = [
            Work(sequence, sequence.num_computed, sequence.num_computed + 1)
            for sequence in self.running
            if sequence.is_decoding
        ]
        budget = self._config.max_batched_tokens - len(works)
        logits = _MOST_PROMPT_LOGITS
        cost = self._costs.compute()
        pace = Pace(cost, self._prefix.pool.shape.block_tokens, calm_s(cost, decoding(self.running)))
        elsewhere: set[bytes] = set()
        prefills = [sequence for sequence in self.running if not sequence.is_decoding]
        num_behind = len(prefills) + len(self.waiting)
        for ahead, sequence in enumerate(prefills):
            is_told = sequence.prompt_logprobs is not None
            most = min(budget, logits) if is_told else budget
            if work := self._chunk(sequence, most, elsewhere, pace, num_behind - ahead):
                works.append(work)
                budget -= work.end - work.start
                logits -= work.num_logits if is_told else 0
        return works

    def check(self) -> None:
        """Raise ``InvariantError`` unless blocks and positions of all sequences add up."""
        pool, step = self._prefix.pool, self._prefix.pool.shape.block_tokens
        held = {block for sequence in self.running for block in sequence.blocks}
        laws = {
            "at most max_sequences run": len(self.running) <= self._config.max_sequences,
            "who waits holds nothing": not any(
                sequence.blocks or sequence.ownership.num_loading for sequence in self.waiting
            ),
            "blocks in use are those of running sequences": len(held)
            == pool.num_blocks - pool.num_free - pool.num_cached,
            "no sequence has a block twice": all(
                len(set(sequence.blocks)) == len(sequence.blocks) for sequence in self.running
            ),
            "all are in order of rank": all(
                queue == sorted(queue, key=_rank) for queue in (self.waiting, self.running)
            ),
            "positions computed have blocks": all(
                sequence.num_computed <= min(len(sequence.tokens), len(sequence.blocks) * step)
                for sequence in self.running
            ),
        }
        if broken := [law for law, holds in laws.items() if not holds]:
            raise InvariantError(f"scheduler: {'; '.join(broken)}")

    def _chunk(
        self, sequence: Sequence, budget: int, elsewhere: set[bytes], pace: Pace, num_behind: int
    ) -> Work | None:
        """Return the next piece of a prefill, and add the keys it computes to ``elsewhere``."""
        self._prefix.advance(sequence)
        if self._waits_for_answer(sequence):
            return None
        start = sequence.num_computed
        limit = min(sequence.num_prefill, start + budget)
        computable = self._prefix.computable_end(sequence, limit, elsewhere)
        end = pace.end(start, computable, num_behind)
        pace.add(start, end, is_served=end == sequence.num_prefill)
        if end == computable < limit and (ready_s := self._ready_s(sequence, end)) is not None:
            pace.awaits(ready_s)
        if end == start:
            return None
        self._prefix.begin_computing(sequence, start, end)
        if sequence.cache.writes:
            elsewhere.update(self._prefix.keys_between(sequence, start, end))
        return Work(sequence, start, end)

    def _waits_for_answer(self, sequence: Sequence) -> bool:
        if sequence.answer_due_s is not None and self._clock.monotonic_s() >= sequence.answer_due_s:
            sequence.answer_due_s = None
        return sequence.answer_due_s is not None

    def _ready_s(self, sequence: Sequence, position: int) -> float | None:
        """Return in how many seconds computing should be able to go on at ``position``.

        ``None`` where that cannot be told: the loads it waits for are late, or nothing is known of them.
        """
        index = position // self._prefix.pool.shape.block_tokens
        if sequence.planning is None or sequence.ownership.owner(index) is not Owner.LOAD:
            return 0.0
        left_s = sequence.planning.loaded_by_s - self._clock.monotonic_s()
        is_known = sequence.planning.latest.prediction.load_s > 0
        return max(0.0, left_s) if is_known and left_s > -_LATE_S else None

    def _victim(self) -> Sequence:
        """Return who gives way: of the worst priority whoever is brought back soonest, then the youngest.

        The first in rank does only when it is alone, so that somebody always goes on to the end.
        """
        others = self.running[1:] or self.running
        worst = others[-1].request.priority
        candidates = [sequence for sequence in others if sequence.request.priority == worst]
        return min(reversed(candidates), key=self._bring_back())

    def _bring_back(self) -> Callable[[Sequence], float]:
        """Return what says in how many seconds a sequence would be there again, as costs are now."""
        compute = self._costs.compute()
        if compute is None:
            return lambda _: 0.0
        kept = list(self._costs.loads(self._clock.monotonic_s()).values())
        shape, chunk_tokens = self._prefix.pool.shape, self._config.max_batched_tokens
        return lambda sequence: bring_back_s(
            sequence.num_computed,
            compute,
            kept if sequence.cache is CacheUse.ON else (),
            shape.block_tokens,
            shape.block_bytes,
            chunk_tokens,
        )

    def _preempt(self, sequence: Sequence) -> None:
        """Send ``sequence`` back to the queue, to take its tokens up again from what is left in the cache."""
        self.num_preempted += 1
        self.running.remove(sequence)
        self._prefix.detach(sequence)
        sequence.restart()
        self.add(sequence)
