"""What the engine says of itself: health, and counts since its start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine_adapter.engine.events import Usage
from engine_adapter.engine.time_buckets import TimeBuckets
from policies.cost_model import LoadCost


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """Whether the engine serves; ``reason`` says why not."""

    ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CostsNow:
    """What computing and each tier's loads cost when a request last ended; ``None``: not known yet."""

    prefill_tokens_per_s: float | None = None
    loads: Mapping[str, LoadCost] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Counts since the start, and what there is now.

    ``requests`` counts finished requests by reason, ``tokens_by_source`` their prompt tokens.
    ``num_preempted`` counts sequences sent back for want of blocks, ``num_taken_over`` blocks
    computed because their load missed or was late. ``saved_s`` is what loading has saved in all against
    computing everything, as predicted, in mode ``observe`` what it would have; ``num_slower`` requests
    were slower than that. ``plans`` counts planned requests by what was chosen. ``num_verified`` blocks
    were computed to compare, and ``num_found_wrong`` of them differed. ``num_clamped`` numbers of keys were
    beyond what their 8 bits hold. ``ttft_by_source`` counts times to the first token in ``TimeBuckets``, by
    where most of the prompt came from. TTFT, ITL and queue time come with each request's events as well.
    """

    num_waiting: int
    num_running: int
    num_steps: int
    num_preempted: int
    num_taken_over: int
    completion_tokens: int
    requests: Mapping[str, int]
    tokens_by_source: Mapping[str, int]
    saved_s: float
    num_slower: int
    plans: Mapping[str, int]
    num_verified: int
    num_found_wrong: int
    num_clamped: int
    num_blocks: int
    num_available_blocks: int
    costs: CostsNow
    ttft_by_source: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(slots=True)
class Tally:
    """What finished requests add up to. Written by the engine's thread alone."""

    num_steps: int = 0
    num_finished: int = 0
    completion_tokens: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    tokens_by_source: Counter[str] = field(default_factory=Counter)
    saved_s: float = 0.0
    num_slower: int = 0
    plans: Counter[str] = field(default_factory=Counter)
    ttft_by_source: dict[str, TimeBuckets] = field(default_factory=dict)

    def add(self, reason: str, usage: Usage) -> None:
        """Count one finished request."""
        self.num_finished += 1
        self.requests[reason] += 1
        self.completion_tokens += usage.completion_tokens
        self.tokens_by_source.update(usage.tokens_by_source)
        if usage.planned is not None:
            self.saved_s += usage.planned.saved_s
            self.num_slower += usage.planned.saved_s < 0
            self.plans[usage.planned.chosen] += 1
        if usage.ttft_s is not None and (source := usage.main_source) is not None:
            self.ttft_by_source.setdefault(source, TimeBuckets()).add(usage.ttft_s)

    def ttft_counts(self) -> dict[str, Sequence[int]]:
        """Return how many first tokens came in what time, by source; from any thread."""
        return {source: tuple(times.counts) for source, times in dict(self.ttft_by_source).items()}
