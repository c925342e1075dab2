"""What engine tests stand on: requests, tiers, and an engine with all that is under it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Condition, Lock
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from backends.device import DevicePool
from backends.faulty import Call, Fault, Faulty, flip_byte
from backends.host import HostBackend
from engine_adapter.engine.answers import answers_of
from engine_adapter.engine.engine import Engine
from engine_adapter.engine.events import Completion, Delta, Event, Finished
from engine_adapter.engine.models import LoadedModel
from engine_adapter.engine.request import Request, Sampling
from kvstore.arena import Arena, slot_stride
from kvstore.keys import chain_keys
from kvstore.store import TieredStore
from kvstore.tier import TierConfig, TierSpec
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU
from tests.eventually import eventually

BLOCK_TOKENS = 8
CONTEXT_TOKENS = 2048
VOCAB_SIZE = 258
EOS = 257
NUM_LAYERS = 3
NUM_KV_HEADS = 2
HEAD_DIM = 12
SLOT_BYTES = slot_stride(NUM_LAYERS * 2 * BLOCK_TOKENS * NUM_KV_HEADS * HEAD_DIM * 4)

CleanIds = Callable[[Sequence[int], int], tuple[int, ...]]


def prompt_of(num_tokens: int, seed: int) -> list[int]:
    """Return random tokens, none of them special."""
    return Random(seed).choices(range(256), k=num_tokens)


def greedy(prompt: Sequence[int], num_tokens: int = 12, **options: Any) -> Request:
    """Return a greedy request that ends for its length alone."""
    return Request(prompt, Sampling(temperature=0, max_tokens=num_tokens, ignore_eos=True), **options)


def clean_run(folder: Path, **options: Any) -> CleanIds:
    """Return what transformers itself answers, greedily and alone; ``options`` as it takes them."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)

    def generate(prompt: Sequence[int], num_tokens: int) -> tuple[int, ...]:
        ids = torch.tensor([prompt])
        options = {"do_sample": False, "eos_token_id": None, "pad_token_id": EOS}
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, **options
        )
        return tuple(output[0, len(prompt) :].tolist())

    return generate


@dataclass
class Rig:
    """An engine and what it stands on."""

    engine: Engine
    store: TieredStore
    pool: DevicePool
    arena: Arena
    model: LoadedModel

    def keys(self, tokens: Sequence[int], salt: str = "") -> list[bytes]:
        """Return the keys of the whole blocks of ``tokens``."""
        return chain_keys(self.model.namespace.with_salt(salt).digest, tokens, BLOCK_TOKENS)

    def on_engine_thread(self, action: Callable[[], None]) -> None:
        """Run ``action`` between two turns of the engine."""
        self.engine._worker.call(action)

    def forget_device(self) -> None:
        """Evict all that the pool has cached, and overwrite it; the store keeps its copies."""

        self.engine.clear_pool()

        def forget() -> None:
            assert self.pool.num_free == self.pool.num_blocks
            self.pool.keys_and_values.fill_(7.0)
            if self.pool.value_scales is not None:
                self.pool.value_scales.fill_(7.0)

        self.on_engine_thread(forget)

    def generate_together(self, requests: Sequence[Request]) -> list[Completion]:
        """Submit all ``requests`` at once and return their answers in order."""
        with ThreadPoolExecutor(len(requests)) as threads:
            return list(threads.map(self.engine.generate, requests))

    def check_at_rest(self) -> None:
        """Everything adds up, and nothing is held by anybody."""
        self.engine.rechecker.set_share(0.0)  # it would not be at rest
        assert self.engine.flush(10)
        self.engine.check()
        self.store.check()
        self.arena.check()
        assert self.pool.num_available == self.pool.num_blocks
        eventually(lambda: self.store.num_holds == 0)


class Events:
    """Collects a request's events, and lets a test wait for some of them."""

    def __init__(self) -> None:
        self.seen: list[Event] = []
        self._arrived = Condition()

    def __call__(self, event: Event) -> None:
        with self._arrived:
            self.seen.append(event)
            self._arrived.notify_all()

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for event in self.seen if isinstance(event, Delta) for token in event.token_ids)

    @property
    def num_ended(self) -> int:
        return sum(isinstance(event, Finished) for event in self.seen)

    def wait_for_tokens(self, num: int, timeout_s: float = 10) -> None:
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.token_ids) >= num, timeout_s)

    def finished(self, timeout_s: float = 10) -> Finished:
        with self._arrived:
            assert self._arrived.wait_for(
                lambda: self.seen and isinstance(self.seen[-1], Finished), timeout_s
            )
        last = self.seen[-1]
        assert isinstance(last, Finished)
        return last

    def answers(self, num: int, timeout_s: float = 10) -> list[Completion]:
        """Wait for all ``num`` answers of a request and return them."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: self.num_ended == num, timeout_s)
        return answers_of(self.seen)


MakeRig = Callable[..., Rig]


def tier(backend: Any, name: str, budget_bytes: int = 2**30, **options: Any) -> TierSpec:
    return TierSpec(TierConfig(name, budget_bytes, **options), backend, LeafFirstLRU(), whole_blocks_that_fit)


def host_tier(arena: Arena, budget_bytes: int) -> TierSpec:
    return tier(HostBackend(arena), "host", budget_bytes)


def slow_tier(script: Sequence[Fault], **options: Any) -> Callable[[Arena], list[TierSpec]]:
    """Return a store's only tier, one that is read by transfer threads and fails as in ``script``."""
    return lambda _arena: [tier(Faulty(HostBackend(Arena(2**24)), script), "disk", **options)]


def moody(random: Random) -> Callable[[Call], int | None]:
    """Return a fault that mostly works, sometimes late, and sometimes fails in one of several ways."""
    lock = Lock()

    def action(call: Call) -> int | None:
        with lock:
            mood = random.random()
        if mood < 0.05:
            raise OSError("not now")
        if mood < 0.10:
            return None
        if mood < 0.15:
            return flip_byte(int(mood * 1000))(call)
        if mood < 0.20:
            time.sleep(0.06)
        return call.proceed()

    return action
