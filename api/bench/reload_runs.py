"""Runs single requests and batches for ``prefixd bench reload``, on one server with one line."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from statistics import median

from api.bench.reload_line import POLICY, Bench, LeapingClock, Line, Speed, Switch, policy_of
from api.bench.reload_plan import Arm, Cell, Known, Trouble, rate_of, trouble_share
from api.bench.reload_statistics import Sample
from engine_adapter.assemble import Serving, assemble
from engine_adapter.engine.events import Delta, Event, Finished, Planned
from engine_adapter.engine.request import CacheUse, Request, Sampling
from engine_adapter.serving_config import ServingConfig, TierSetup
from kvstore.clock import Clock
from kvstore.errors import ServerFailedError
from kvstore.registry import Registry
from kvstore.statistics import State

Assemble = Callable[[ServingConfig, Registry, Clock], Serving]

MOST_CONCURRENT = 8
_DISK_BYTES = 4 << 30
_TOKENS_ALONE, _TOKENS_IN_BATCH = 3, 8
_TIMED_RUNS = 3
_MOST_WARM_UPS = 6
_NEAR = 0.25
_COOLED_S = 6.0
# Ordinary words, in most vocabularies; special tokens come first or last.
_TOKEN_IDS = slice(1000, 40_000)
_COMPUTE, _LOAD, _MEASURED = Arm("always-compute"), Arm("always-load"), Arm("measured")
_WARMING = Arm("computes most", 0.75)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to: its sample but for the round, whether its answers are the clean ones, its plans."""

    sample: Sample
    is_equal: bool
    plans: tuple[Planned | None, ...]


class Runner:
    """A server whose only tier is a line that is turned, and the prompts it has stored there."""

    def __init__(self, serving: Serving, bench: Bench, registry: Registry, clock: LeapingClock) -> None:
        self._serving = serving
        self._bench = bench
        self._registry = registry
        self._clock = clock
        self._dice = random.Random(2026)  # noqa: S311  not a secret
        self._prompts: dict[int, list[list[int]]] = {}
        self._clean: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.tokenizer = serving.tokenizer
        self.block_bytes = serving.model_facts.kv_shape.block_bytes
        self.block_tokens = serving.model_facts.kv_shape.block_tokens

    def prepare(self, prompt_tokens: int, num: int) -> None:
        """Make ``num`` prompts of random tokens, and store them."""
        all_ids = range(self._serving.model_facts.vocab_size)
        ids = all_ids[_TOKEN_IDS] or all_ids
        self.store([self._dice.choices(ids, k=prompt_tokens) for _ in range(num)])

    def store(self, prompts: list[list[int]]) -> None:
        """Answer prompts of one length without any cache, then store them; the line is unthrottled.

        They are those of cells of that length. Raises ``ServerFailedError`` when they are not stored.
        """
        prompt_tokens = len(prompts[0])
        self._prompts[prompt_tokens] = prompts
        for prompt in prompts:
            (deltas, _), *_ = self._send([prompt], _TOKENS_IN_BATCH, CacheUse.OFF)
            self._clean[tuple(prompt)] = _ids_of(deltas)
            self._run(Cell(prompt_tokens, None, 0.0), _COMPUTE, None, [prompt])
        self._serving.engine.flush()
        num_blocks = sum(tokens // self.block_tokens * len(held) for tokens, held in self._prompts.items())
        disk = self._serving.store.statistics().tiers[-1]
        if disk.num_blocks < num_blocks:
            raise ServerFailedError(f"only {disk.num_blocks} of {num_blocks} blocks were stored")

    def compute_s(self, prompt_tokens: int) -> float:
        """Return the TTFT of computing a prompt, the median of a few."""
        return median(self.computed(prompt_tokens).sample.ttft_s[0] for _ in range(_TIMED_RUNS))

    def computed(self, prompt_tokens: int) -> Outcome:
        """Compute a prompt that is stored, once."""
        return self._run(Cell(prompt_tokens, None, 0.0), _COMPUTE, None)

    def unthrottled_bytes_per_s(self, prompt_tokens: int) -> float:
        """Return how fast the medium itself gives a prompt, by the TTFT of loading it."""
        cell = Cell(prompt_tokens, None, 0.0)
        load_s = median(self._run(cell, _LOAD, None).sample.ttft_s[0] for _ in range(_TIMED_RUNS))
        return self.prompt_bytes(prompt_tokens) / load_s

    def prompt_bytes(self, prompt_tokens: int) -> int:
        """Return the size of a prompt's whole blocks."""
        return prompt_tokens // self.block_tokens * self.block_bytes

    def warm_up(self, cell: Cell, known: Known) -> None:
        """Let the engine meet a cell's line, by requests that are not counted."""
        self._learn_anew(cell, known)
        if cell.trouble is Trouble.NONE:
            self._run(cell, _MEASURED, self._speed(cell, known))

    def measure(self, cell: Cell, arm: Arm, known: Known) -> Outcome:
        """Run one arm; a line that gets into trouble was as it should be before."""
        if cell.trouble is not Trouble.NONE and arm == _MEASURED:
            self._learn_anew(cell, known)
        return self._run(cell, arm, self._speed(cell, known))

    def _learn_anew(self, cell: Cell, known: Known) -> None:
        """Load a part of one prompt over the sound line, again and again until the engine believes in it."""
        alone = replace(cell, concurrency=1, trouble=Trouble.NONE)
        speed = self._speed(alone, known)
        sound_s = cell.latency_s + self.prompt_bytes(cell.prompt_tokens) / speed.bytes_per_s
        for _ in range(_MOST_WARM_UPS):
            (plan,) = self._run(alone, _WARMING, speed).plans
            if plan is not None and abs(plan.if_loaded_s / sound_s - 1) < _NEAR:
                return

    def _speed(self, cell: Cell, known: Known) -> Speed:
        break_even = self.prompt_bytes(cell.prompt_tokens) / known.compute_s[cell.prompt_tokens]
        num_blocks = cell.prompt_tokens // self.block_tokens
        after = round(trouble_share(cell, known) * num_blocks)
        return Speed(break_even * rate_of(cell, known), cell.latency_s, cell.trouble, after)

    def _run(
        self, cell: Cell, arm: Arm, speed: Speed | None, prompts: Sequence[list[int]] | None = None
    ) -> Outcome:
        prompts = prompts or self._prompts[cell.prompt_tokens][: cell.concurrency]
        line = self._line()
        line.set(speed if cell.rate is not None else None)
        self._bench.switch.policy = policy_of(arm, self._registry)
        self._serving.engine.clear_pool()
        num_tokens = _TOKENS_ALONE if len(prompts) == 1 else _TOKENS_IN_BATCH
        began_s = time.perf_counter()
        answers = self._send(prompts, num_tokens, CacheUse.ON)
        took_s = time.perf_counter() - began_s
        self._calm(line)
        ids = [_ids_of(deltas) for deltas, _ in answers]
        clean = [self._clean[tuple(prompt)][:num_tokens] for prompt in prompts]
        ttft_s = tuple(finished.usage.ttft_s or 0.0 for _, finished in answers)
        sample = Sample(0, ttft_s, sum(map(len, ids)) / took_s)
        return Outcome(sample, ids == clean, tuple(finished.usage.planned for _, finished in answers))

    def _calm(self, line: Line) -> None:
        """Wait for reads that are nobody's any more, and let a tier that was left alone be tried again."""
        line.settle()
        if self._serving.store.health().state is not State.OK:
            self._clock.leap(_COOLED_S)

    def _line(self) -> Line:
        if self._bench.line is None:
            raise ServerFailedError("the tier to measure could not be opened")
        return self._bench.line

    def _send(
        self, prompts: Sequence[list[int]], max_tokens: int, cache: CacheUse
    ) -> list[tuple[list[Delta], Finished]]:
        """Send the prompts together, greedy, and wait for all answers."""
        sampling = Sampling(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        events: list[SimpleQueue[Event]] = [SimpleQueue() for _ in prompts]
        for prompt, queue in zip(prompts, events, strict=True):
            self._serving.engine.submit(Request(prompt, sampling, cache), queue.put)
        return [_collect(queue) for queue in events]


@contextmanager
def running(config: ServingConfig, folder: Path, make: Assemble = assemble) -> Iterator[Runner]:
    """Assemble a server for the benchmark by ``make``, with its tier and what it learns in ``folder``."""
    bench, clock = Bench(Switch()), LeapingClock()
    registry = bench.registry()
    disk = TierSetup("disk", _DISK_BYTES, "lru", "through", folder / "blocks")
    own = replace(
        config,
        tiers=(disk,),
        reload_policy=POLICY,
        mode="serve",
        cost_folder=folder / "costs",
        max_sequences=max(config.max_sequences, MOST_CONCURRENT),
    )
    serving = make(own, registry, clock.clock())
    try:
        yield Runner(serving, bench, registry, clock)
    finally:
        serving.close()


def _collect(events: SimpleQueue[Event]) -> tuple[list[Delta], Finished]:
    deltas: list[Delta] = []
    while not isinstance(event := events.get(), Finished):
        deltas.append(event)
    if event.error is not None:
        raise ServerFailedError(event.error)
    return deltas, event


def _ids_of(deltas: Sequence[Delta]) -> tuple[int, ...]:
    return tuple(token for delta in deltas for token in delta.token_ids)
