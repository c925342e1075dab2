"""A server around a random model, with what the parts of the benchmark ask of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from api.bench.reload_line import POLICY, Switch
from backends.builtin import BUILT_IN
from benchmarks.on_gpu.random_llama import random_llama, word_tokenizer
from benchmarks.on_gpu.sizes import BLOCK_TOKENS, Size
from engine_adapter.assemble import Serving, assemble_around
from engine_adapter.engine.events import Completion
from engine_adapter.engine.models import LoadedModel
from engine_adapter.engine.request import CacheUse, Request, Sampling
from engine_adapter.serving_config import ServingConfig, TierSetup
from kvstore.clock import Clock
from kvstore.keys import chain_keys
from kvstore.registry import Kind, Registry
from kvstore.seams import Backend
from policies.builtin import register_builtin as register_policies
from policies.planning import ReloadPolicy
from policies.reload import AlwaysLoad

BELOW_DEVICE = ("host", "disk")
FLUSH_S = 120.0

_LOAD_DEADLINE_S = 30.0
OpenDisk = Callable[[Path], Backend]


@dataclass
class Served:
    """A server at work; ``switch`` holds the reload policy it goes by."""

    serving: Serving
    switch: Switch

    def answer(self, request: Request, policy: ReloadPolicy | None = None) -> Completion:
        """Return the answer to ``request``, by ``policy``, or loading all that can be."""
        self.switch.policy = policy or AlwaysLoad()
        return sound(self.serving.engine.generate(request))

    def answers_together(self, requests: Sequence[Request]) -> list[Completion]:
        """Return the answers to ``requests`` that are sent at once, in order; loads all that can be."""
        self.switch.policy = AlwaysLoad()
        with ThreadPoolExecutor(len(requests)) as threads:
            return [sound(answer) for answer in threads.map(self.serving.engine.generate, requests)]

    def store(self, prompt: Sequence[int]) -> None:
        """Leave the blocks of ``prompt`` in all tiers."""
        self.answer(greedy(prompt, 1, cache=CacheUse.WRITE))
        self.flush()

    def keep_from(self, tier: str) -> None:
        """Drop everything from the tiers that are faster than ``tier``."""
        self.flush()
        tiers = ("device", *(name for name in BELOW_DEVICE if self._has(name)))
        for faster in tiers[: tiers.index(tier)]:
            self.serving.clear(faster)

    def flush(self) -> None:
        """Wait until all that was computed has reached all tiers."""
        assert self.serving.engine.flush(FLUSH_S), "what was computed did not reach the tiers in time"

    def keys(self, prompt: Sequence[int]) -> list[bytes]:
        """Return the keys of the whole blocks of ``prompt``."""
        return chain_keys(self.serving.model_facts.namespace.digest, prompt, BLOCK_TOKENS)

    def check_at_rest(self) -> None:
        """Raise unless everything adds up, and nothing is held by anybody."""
        self.flush()
        self.serving.engine.check()
        self.serving.store.check()
        statistics = self.serving.engine.statistics()
        assert statistics.num_available_blocks == statistics.num_blocks, "blocks of the pool are still held"
        assert self.serving.store.num_holds == 0, "blocks of the store are still held"

    def _has(self, tier: str) -> bool:
        return any(held.name == tier for held in self.serving.store.statistics().tiers)


@dataclass
class Bench:
    """What all parts share: sizes, the device, a folder, and the two models, made when first asked for.

    Without ``decode_graphs`` no server records its decode steps.
    """

    size: Size
    device: torch.device
    folder: Path
    decode_graphs: bool = True

    @cached_property
    def served_model(self) -> LoadedModel:
        """The model that computes in bf16."""
        return self._model(torch.bfloat16)

    @cached_property
    def exact_model(self) -> LoadedModel:
        """The model that computes in fp32."""
        return self._model(torch.float32)

    @contextmanager
    def serve(
        self,
        model: LoadedModel,
        tiers: Sequence[str] = BELOW_DEVICE,
        pool_bytes: int | None = None,
        open_disk: OpenDisk | None = None,
    ) -> Iterator[Served]:
        """Serve ``model``, with tiers of its own, for the time of a ``with``."""
        switch = Switch()
        with TemporaryDirectory(dir=self.folder) as folder:
            config = self.config(Path(folder), tiers)
            if pool_bytes is None:
                pool_bytes = self._pool_bytes(model)
            registry = _registry(switch, open_disk)
            serving = self.assemble(model, replace(config, device_bytes=pool_bytes), registry)
            try:
                assert not serving.degraded, f"tiers are missing: {serving.degraded}"
                yield Served(serving, switch)
            finally:
                serving.close()

    def assemble(
        self, model: LoadedModel, config: ServingConfig, registry: Registry, clock: Clock | None = None
    ) -> Serving:
        """Return a server around ``model``."""
        return assemble_around(model, word_tokenizer(model.vocab_size), config, registry, clock)

    def config(self, folder: Path, tiers: Sequence[str] = BELOW_DEVICE) -> ServingConfig:
        """Return how a server in ``folder`` is set up; the model is brought along."""
        setups = {
            "host": TierSetup("host", self.size.host_bytes, "lru", "through"),
            "disk": TierSetup("disk", self.size.disk_bytes, "lru", "through", folder / "blocks"),
        }
        return ServingConfig(
            model=folder,
            weight_digests=folder / "digests.json",
            device=self.device.type,
            compute_dtype="auto",
            kv_dtype="auto",
            block_tokens=BLOCK_TOKENS,
            device_bytes=self.size.pool_bytes,
            device_eviction="lru",
            tiers=tuple(setups[name] for name in tiers),
            default_ttl_s=None,
            reload_policy=POLICY,
            load_deadline_s=_LOAD_DEADLINE_S,
            mode="serve",
            verify_share=0.05,
            cost_folder=folder / "costs",
            max_batched_tokens=self.size.step_tokens,
            max_sequences=64,
            max_waiting=256,
            decode_graphs=self.decode_graphs,
        )

    def prompts(self, num: int, num_tokens: int, seed: int) -> list[list[int]]:
        """Return random prompts of ordinary words, other ones for each ``seed``."""
        dice = random.Random(seed)  # noqa: S311 - prompts that are the same in every run
        words = range(10, min(self.size.served.vocab, self.size.exact.vocab))
        return [dice.choices(words, k=num_tokens) for _ in range(num)]

    def wait(self) -> None:
        """Wait until the device has done all that it was told to."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _model(self, dtype: torch.dtype) -> LoadedModel:
        shape = self.size.exact if dtype == torch.float32 else self.size.served
        return random_llama(shape, dtype, self.device, self.size.context_tokens)

    def _pool_bytes(self, model: LoadedModel) -> int:
        is_exact = model.compute_dtype == torch.float32
        return self.size.exact_pool_bytes if is_exact else self.size.pool_bytes


def greedy(
    prompt: Sequence[int], num_tokens: int, cache: CacheUse = CacheUse.ON, logprobs: int | None = None
) -> Request:
    """Return a greedy request that ends for its length alone."""
    sampling = Sampling(temperature=0, max_tokens=num_tokens, ignore_eos=True, logprobs=logprobs)
    return Request(prompt, sampling, cache)


def sound(answer: Completion) -> Completion:
    """Return ``answer`` unless it ended with an error."""
    assert answer.error is None, answer.error
    return answer


def _registry(switch: Switch, open_disk: OpenDisk | None) -> Registry:
    registry = Registry()
    factories = {**BUILT_IN, "disk": open_disk} if open_disk else BUILT_IN
    for name, factory in factories.items():
        registry.register(Kind.BACKEND, name, factory)
    register_policies(registry)
    registry.register(Kind.RELOAD, POLICY, lambda: switch)
    return registry
