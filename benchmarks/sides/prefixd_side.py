"""The bundled engine as a side of ``benchmarks/engines.py``: MODEL DTYPE CHUNK_TOKENS FOLDER."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

from api.bench.engine import collect, keep_only_below
from api.serving_config import serving_config
from api.setting_types import Dtype
from api.settings import Settings
from benchmarks.sides.protocol import Command, Prompts, serve
from engine_adapter.assemble import Serving, assemble
from engine_adapter.engine.events import Delta, Event, Finished
from engine_adapter.engine.request import CacheUse, Request, Sampling
from engine_adapter.serving_config import ServingConfig

_GIB = 1 << 30
_TIERS = ("device", "host", "disk")


def load() -> Mapping[str, Command]:
    """Load the model and return what it can be asked."""
    model, dtype, chunk_tokens, folder = sys.argv[1:]
    side = Side(assemble(configuration(Path(model), cast("Dtype", dtype), int(chunk_tokens), Path(folder))))
    atexit.register(side.serving.close)
    return {"answer": side.answer_s, "hits": side.hits_s, "gaps": side.gaps_s, "overhead": side.overhead_s}


@dataclass
class Side:
    """Answers from one server; every prompt it is given is a new one."""

    serving: Serving
    forwards: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        began: list[float] = []
        model = self.serving.model_facts.model
        model.register_forward_pre_hook(lambda *_: began.append(time.perf_counter()))
        model.register_forward_hook(lambda *_: self.forwards.append((began.pop(), time.perf_counter())))

    def answer_s(self, prompts: Prompts, max_tokens: int) -> float:
        """Return how long it takes to answer all prompts, sent together, from no cache."""
        began_s = time.perf_counter()
        queues = [self._submit(prompt, max_tokens, CacheUse.OFF) for prompt in prompts]
        for queue in queues:
            collect(queue)
        return time.perf_counter() - began_s

    def hits_s(self, prompt: list[int]) -> dict[str, float]:
        """Return the time to a first token with the prompt in each tier and in none above it."""
        collect(self._submit(prompt, 1, CacheUse.ON))
        found = {}
        for number, tier in enumerate(_TIERS):
            keep_only_below(self.serving, _TIERS[:number])
            began_s = time.perf_counter()
            collect(self._submit(prompt, 1, CacheUse.ON))
            found[tier] = time.perf_counter() - began_s
        return found

    def gaps_s(self, decoding: Prompts, prompt: list[int]) -> list[float]:
        """Return the times between tokens of ``decoding`` prompts while ``prompt`` is prefilled."""
        queues = [self._submit(one, 400, CacheUse.OFF) for one in decoding]
        for queue in queues:
            for _ in range(9):
                _next(queue)
        collect(self._submit(prompt, 1, CacheUse.OFF))
        gaps = [gap for queue in queues for gap in _waiting_gaps(queue)]
        for queue in queues:
            collect(queue)
        return gaps

    def overhead_s(self, prompts: Prompts, max_tokens: int) -> float:
        """Return the time a step spends outside the model's forward pass while all prompts decode."""
        self.forwards.clear()
        self.answer_s(prompts, max_tokens)
        steps = self.forwards[-max_tokens + 2 : -1]
        inside_s = sum(end_s - began_s for began_s, end_s in steps)
        return (steps[-1][1] - steps[0][0] - inside_s) / (len(steps) - 1)

    def _submit(self, prompt: Any, max_tokens: int, cache: CacheUse) -> SimpleQueue[Event]:
        queue: SimpleQueue[Event] = SimpleQueue()
        sampling = Sampling(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self.serving.engine.submit(Request(prompt, sampling, cache), queue.put)
        return queue


def _next(queue: SimpleQueue[Event]) -> Event:
    event = queue.get()
    if isinstance(event, Finished) and event.error is not None:
        raise RuntimeError(event.error)
    return event


def _waiting_gaps(queue: SimpleQueue[Event]) -> list[float]:
    """Return the gaps of what has come so far."""
    found = []
    while not queue.empty():
        event = queue.get()
        if isinstance(event, Delta) and event.since_previous_s is not None:
            found.append(event.since_previous_s)
    return found


def configuration(model: Path, dtype: Dtype, chunk_tokens: int, folder: Path) -> ServingConfig:
    """Return a server with all three tiers and what it keeps below ``folder``."""
    settings = Settings(
        model=model,
        device="cpu",
        compute_dtype=dtype,
        device_bytes=_GIB,
        host_bytes=_GIB,
        disk_bytes=_GIB,
        disk_path=folder / "blocks",
        cache_path=folder,
        default_ttl_s=None,
        load_deadline_s=30.0,
        verify_share=0.0,
        max_batched_tokens=chunk_tokens,
        max_sequences=8,
        max_waiting=64,
    )
    return serving_config(settings)


if __name__ == "__main__":
    serve(load)
