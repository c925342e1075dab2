"""One request on its way through the engine."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from engine_adapter.engine.detokenize import TextStream
from engine_adapter.engine.events import COMPUTED, OnEvent, Planned, Usage
from engine_adapter.engine.logprobs import PromptCollector
from engine_adapter.engine.misses import Miss
from engine_adapter.engine.ownership import Ownership
from engine_adapter.engine.plans import Planning
from engine_adapter.engine.request import CacheUse, Mode, Request
from engine_adapter.engine.sampling import Sampler
from kvstore.inquiry import Inquiry
from kvstore.keys import chain_keys
from kvstore.namespace import Namespace


@dataclass(slots=True)
class Times:
    """When things happened to a sequence, on the engine's monotonic clock."""

    submitted_s: float
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    load_started_s: float | None = None
    loaded_s: float | None = None

    def note_token(self, now_s: float) -> float | None:
        """Record a token; return the time since the one before, ``None`` for the first."""
        previous_s, self.last_token_s = self.last_token_s, now_s
        if previous_s is None:
            self.first_token_s = now_s
            return None
        return now_s - previous_s

    def note_load(self, began_s: float, arrived_s: float | None) -> None:
        """Record that loads are under way, and the last arrival; nothing once there is a token."""
        if self.first_token_s is None:
            self.load_started_s = began_s if self.load_started_s is None else self.load_started_s
            self.loaded_s = self.loaded_s if arrived_s is None else arrived_s


class Sequence:
    """Tokens, the blocks that hold their keys and values, and how far computing has come.

    ::

        tokens    prompt ............ generated ......
        computed  ─────────> num_computed              (its position in the pool's blocks)
        prefill   ──────────────────────> num_prefill  (what was there at admission)

    Used by the engine's thread alone once it was submitted.
    """

    def __init__(
        self,
        number: int,
        request: Request,
        on_event: OnEvent,
        text: TextStream,
        submitted_s: float,
        mode: Mode = Mode.SERVE,
        index: int = 0,
    ) -> None:
        """``index`` is that of the answer, among those to the same prompt."""
        self.number = number
        self.index = index
        self.forks: list[Sequence] = []
        """Further answers to the prompt, until it is complete and they go on from there."""
        self.is_fork = False
        self.request = request
        self.on_event = on_event
        self.text = text
        self.sampler = Sampler(request.sampling, index)
        self.matcher = None if request.constraint is None else request.constraint.begin()
        self.times = Times(submitted_s)
        self.cache = CacheUse.OFF if mode is Mode.OFF else request.cache
        self.prompt_logprobs: PromptCollector | None = None
        """Until they are told, where they are asked for: then the whole prompt is computed here."""
        if (num_top := request.sampling.prompt_logprobs) is not None and not index:
            self.prompt_logprobs = PromptCollector(num_top)
            self.cache = self.cache.without_reading
        self.tokens = list(request.prompt_ids)
        self.num_prompt = len(self.tokens)
        self.num_prefill = self.num_prompt
        self.num_computed = 0
        self.blocks: list[int] = []
        self.keys: list[bytes] = []
        self.namespace: Namespace
        """Set when the sequence is given its blocks, unless the cache is off."""
        self.ownership = Ownership()
        self.tokens_by_source: Counter[str] = Counter()
        self.mode = mode
        self.is_served = mode in {Mode.SERVE, Mode.VERIFY}
        """Whether blocks of lower tiers are used; not where a hit is only predicted or verified."""
        self.inquiry: Inquiry | None = None
        self.answer_due_s: float | None = None
        """Until when computing waits for the answer to the inquiry; ``None``: not, or not any more."""
        self.planning: Planning | None = None
        self.planned_at = -1
        self.num_failed = 0
        """Blocks asked for that did not come, before it was given up or preempted."""
        self.miss: Miss | None = None
        """The first block that no tier had, as it was when computing began."""

    @property
    def rank(self) -> tuple[int, int]:
        """Its place among all: who has the smaller rank goes first."""
        return self.request.priority, self.number

    @property
    def num_generated(self) -> int:
        """Tokens chosen so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def is_decoding(self) -> bool:
        """Whether all it had at admission is computed, so that it goes on token by token."""
        return self.num_computed >= self.num_prefill

    def extend_keys(self, num_blocks: int, block_tokens: int) -> None:
        """Let the first ``num_blocks`` blocks, whose tokens are there, have their keys."""
        num_known = len(self.keys)
        tokens = self.tokens[num_known * block_tokens : num_blocks * block_tokens]
        self.keys += chain_keys(self.namespace.digest, tokens, block_tokens, self.parent_key(num_known))

    def parent_key(self, index: int) -> bytes:
        """Return the key of the block before block ``index``; empty: there is none."""
        return self.keys[index - 1] if index else b""

    def move_to(self, position: int, source: str) -> None:
        """Note that keys and values up to ``position`` are there, thanks to ``source``."""
        if not self.num_generated:
            self.tokens_by_source[source] += position - self.num_computed
        self.num_computed = position

    def leave_tiers(self) -> None:
        """Nothing of it will be loaded any more."""
        if self.inquiry is not None:
            self.inquiry.abandon()
            self.inquiry, self.answer_due_s = None, None
        self.ownership.close()

    def restart(self) -> None:
        """Begin again from the first token, with all tokens so far as the prompt to compute."""
        self.num_computed = 0
        self.num_prefill = len(self.tokens)
        self.planned_at = -1
        if self.planning is not None:
            self.planning.interrupt()
        if not self.num_generated:
            self.tokens_by_source.clear()

    def usage(self) -> Usage:
        """Return what the request has cost so far."""
        times = self.times
        gaps = max(0, self.num_generated - 1)
        decoded_s = (times.last_token_s or 0.0) - (times.first_token_s or 0.0)
        return Usage(
            prompt_tokens=self.num_prompt,
            completion_tokens=self.num_generated,
            tokens_by_source={COMPUTED: 0, **self.tokens_by_source},
            queue_s=_since(times.submitted_s, times.admitted_s),
            ttft_s=_since(times.submitted_s, times.first_token_s),
            itl_s=decoded_s / gaps if gaps else None,
            load_s=_since(times.load_started_s, times.loaded_s) or 0.0,
            planned=self._planned(),
        )

    def _planned(self) -> Planned | None:
        planning, first_token_s = self.planning, self.times.first_token_s
        if planning is None or (first_token_s is not None and planning.first_s > first_token_s):
            return None  # or it was planned for when it came back, which is not about the prompt
        num_failed = self.num_failed + self.ownership.num_taken_over
        return planning.told(self.mode, first_token_s, is_served=self.is_served, num_failed=num_failed)


def _since(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else end_s - start_s
