"""``prefixd bench engine``: rates, TTFT cold and from each tier, ITL, and what the cache costs unused.

The same work as vLLM is given beside us: prompts of 2,000 random tokens, and prompts of 64 tokens
that decode 64.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from statistics import median, quantiles
from typing import Any

from engine_adapter.assemble import Serving, assemble
from engine_adapter.engine.events import Delta, Event, Finished
from engine_adapter.engine.request import CacheUse, Request, Sampling
from engine_adapter.serving_config import ServingConfig

PROMPT_TOKENS = 2000
DECODED_TOKENS = 64
_SHORT_PROMPT_TOKENS = 64
_BATCHES = (1, 8)
_MARKED_TIERS = ("device", "host", "disk")
_SMALL_HOST_SHARE = 0.25
# Ordinary words, in most vocabularies; special tokens come first or last.
_TOKEN_IDS = slice(1000, 40_000)


@dataclass(frozen=True)
class Run:
    """What some requests, sent together, came to."""

    token_ids: tuple[tuple[int, ...], ...]
    ttft_s: float
    itl_s: tuple[float, ...]
    decode_s: float
    sources: frozenset[str]


@dataclass
class EngineBench:
    """Measures one model under one configuration; medians over ``rounds``."""

    config: ServingConfig
    rounds: int
    _prompts: random.Random = field(default_factory=lambda: random.Random(2026))  # noqa: S311  not a secret

    def stages(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """Return what to run, by name; each returns its part of the report."""
        return {
            "computing": self._bench_computing,
            "hits": self._bench_hits,
            "overhead": partial(self._bench_overhead, "no_reuse_overhead", self.config),
            "overhead with a small host tier": partial(
                self._bench_overhead, "no_reuse_overhead_small_host", _with_small_host(self.config)
            ),
        }

    def _bench_computing(self) -> dict[str, Any]:
        with _serving(self.config) as serving:
            self._send(serving, [self._prompt(serving)], 2, CacheUse.OFF)
            cold = [self._send(serving, [self._prompt(serving)], 1, CacheUse.OFF) for _ in range(self.rounds)]
            long = self._send(serving, [self._prompt(serving)], DECODED_TOKENS + 1, CacheUse.OFF)
            decodes = {str(size): self._decode_runs(serving, size) for size in _BATCHES}
        ttft_s = median(run.ttft_s for run in cold)
        itl_s = [gap for run in decodes[str(_BATCHES[-1])] for gap in run.itl_s]
        facts = serving.model_facts.namespace
        return {
            "compute_dtype": facts.compute_dtype,
            "kv_dtype": facts.kv_dtype,
            "prompt_tokens": PROMPT_TOKENS,
            "prefill_tok_s": PROMPT_TOKENS / ttft_s,
            "decode_tok_s": {
                size: int(size) * DECODED_TOKENS / median(run.decode_s for run in runs)
                for size, runs in decodes.items()
            },
            "decode_tok_s_at_2000": len(long.itl_s) / long.decode_s,
            "ttft_cold_s": ttft_s,
            "itl_p50_s": median(itl_s),
            "itl_p99_s": _p99(itl_s),
        }

    def _bench_hits(self) -> dict[str, Any]:
        """Send each prompt without any cache, then so that it is loaded from each tier in turn."""
        are_equal = True
        ttft_s: dict[str, list[float]] = {tier: [] for tier in _MARKED_TIERS}
        with _serving(self.config) as serving:
            tiers = ["device", *(tier.name for tier in serving.store.statistics().tiers[1:])]
            for number in range(self.rounds + 1):
                prompt = self._prompt(serving)
                clean = self._send(serving, [prompt], 2, CacheUse.OFF)
                stored = self._send(serving, [prompt], 2)
                are_equal &= clean.token_ids == stored.token_ids
                for tier in tiers:
                    keep_only_below(serving, tiers[: tiers.index(tier)])
                    hit = self._send(serving, [prompt], 2)
                    are_equal &= hit.token_ids == clean.token_ids and hit.sources == {"computed", tier}
                    if number:
                        ttft_s[tier].append(hit.ttft_s)
        medians = {tier: median(times) if times else None for tier, times in ttft_s.items()}
        return {"ttft_hit_s": medians, "tokens_equal": are_equal}

    def _bench_overhead(self, name: str, config: ServingConfig) -> dict[str, Any]:
        """Compare the cache on with the cache off, on prompts that never come again.

        The sides of a pair follow each other at once, in turns; the TTFT ratio is the median over pairs.
        """
        ttft_ratios: list[float] = []
        itl_s: dict[CacheUse, list[float]] = {CacheUse.OFF: [], CacheUse.ON: []}
        with _serving(config) as serving:
            for number in range(self.rounds + 1):
                order = (CacheUse.OFF, CacheUse.ON)[:: 1 if number % 2 else -1]
                ttft_s = {use: self._send(serving, [self._prompt(serving)], 1, use).ttft_s for use in order}
                for use in order:
                    short = self._short_prompts(serving, _BATCHES[-1])
                    decoded = self._send(serving, short, DECODED_TOKENS + 1, use)
                    itl_s[use].extend(decoded.itl_s if number else ())
                if number:
                    ttft_ratios.append(ttft_s[CacheUse.ON] / ttft_s[CacheUse.OFF])
        ratios = {
            "ttft": median(ttft_ratios),
            "itl_p99": _p99(itl_s[CacheUse.ON]) / _p99(itl_s[CacheUse.OFF]),
        }
        return {name: ratios}

    def _decode_runs(self, serving: Serving, size: int) -> list[Run]:
        runs = [
            self._send(serving, self._short_prompts(serving, size), DECODED_TOKENS + 1, CacheUse.OFF)
            for _ in range(self.rounds + 1)
        ]
        return runs[1:]

    def _short_prompts(self, serving: Serving, size: int) -> list[list[int]]:
        return [self._prompt(serving, _SHORT_PROMPT_TOKENS) for _ in range(size)]

    def _prompt(self, serving: Serving, num_tokens: int = PROMPT_TOKENS) -> list[int]:
        all_ids = range(serving.model_facts.vocab_size)
        return self._prompts.choices(all_ids[_TOKEN_IDS] or all_ids, k=num_tokens)

    def _send(
        self, serving: Serving, prompts: Sequence[list[int]], max_tokens: int, cache: CacheUse = CacheUse.ON
    ) -> Run:
        """Send the prompts together, greedy, and wait for all answers."""
        sampling = Sampling(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        events: list[SimpleQueue[Event]] = [SimpleQueue() for _ in prompts]
        for prompt, queue in zip(prompts, events, strict=True):
            serving.engine.submit(Request(prompt, sampling, cache), queue.put)
        answers = [collect(queue) for queue in events]
        serving.engine.flush(60.0)
        return _summed(answers)


def collect(events: SimpleQueue[Event]) -> tuple[list[Delta], Finished]:
    """Wait for the rest of an answer and return it. Raises ``RuntimeError`` when it ended with an error."""
    deltas: list[Delta] = []
    while not isinstance(event := events.get(), Finished):
        deltas.append(event)
    if event.error is not None:
        raise RuntimeError(event.error)
    return deltas, event


def _summed(answers: Sequence[tuple[list[Delta], Finished]]) -> Run:
    """Return the run: its decode time ends with the last answer and begins when all have a first token."""
    gaps = [[delta.since_previous_s or 0.0 for delta in deltas[1:]] for deltas, _ in answers]
    usages = [finished.usage for _, finished in answers]
    ttfts = [usage.ttft_s or 0.0 for usage in usages]
    ends = [ttft_s + sum(own) for ttft_s, own in zip(ttfts, gaps, strict=True)]
    token_ids = [[token for delta in deltas for token in delta.token_ids] for deltas, _ in answers]
    return Run(
        token_ids=tuple(map(tuple, token_ids)),
        ttft_s=max(ttfts),
        itl_s=tuple(gap for own in gaps for gap in own),
        decode_s=max(ends) - max(ttfts),
        sources=frozenset(name for usage in usages for name, num in usage.tokens_by_source.items() if num),
    )


def keep_only_below(serving: Serving, tiers: Sequence[str]) -> None:
    """Empty the faster tiers, so that the next one down has to serve the hit."""
    serving.engine.flush(60.0)
    for tier in tiers:
        serving.clear(tier)


def _with_small_host(config: ServingConfig) -> ServingConfig:
    """Return the configuration with a host tier a quarter of the device pool."""
    device_bytes = config.device_bytes or 1 << 30
    small = int(device_bytes * _SMALL_HOST_SHARE)
    tiers = (replace(tier, budget_bytes=small) if tier.name == "host" else tier for tier in config.tiers)
    return replace(config, device_bytes=device_bytes, tiers=tuple(tiers))


@contextmanager
def _serving(config: ServingConfig) -> Iterator[Serving]:
    serving = assemble(config)
    try:
        yield serving
    finally:
        serving.close()


def _p99(values: Sequence[float]) -> float:
    return quantiles(values, n=100)[98]
