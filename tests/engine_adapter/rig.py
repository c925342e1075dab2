"""What engine tests stand on: requests, tiers, and an engine with all that is under it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from backends.device import DevicePool
from backends.host import HostBackend
from engine_adapter.engine.engine import Engine
from engine_adapter.engine.request import Request, Sampling
from kvstore.arena import Arena
from kvstore.store import TieredStore
from kvstore.tier import TierConfig, TierSpec
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU

BLOCK_TOKENS = 8
CONTEXT_TOKENS = 256
VOCAB_SIZE = 258
EOS = 257

CleanIds = Callable[[Sequence[int], int], tuple[int, ...]]


def prompt_of(num_tokens: int, seed: int) -> list[int]:
    """Return random tokens, none of them special."""
    return Random(seed).choices(range(256), k=num_tokens)


def greedy(prompt: Sequence[int], num_tokens: int = 12, **options: Any) -> Request:
    """Return a greedy request that ends for its length alone."""
    return Request(prompt, Sampling(temperature=0, max_tokens=num_tokens, ignore_eos=True), **options)


@dataclass
class Rig:
    """An engine and what it stands on."""

    engine: Engine
    store: TieredStore
    pool: DevicePool
    arena: Arena

    def check_at_rest(self) -> None:
        """Everything adds up, and nothing is held by anybody."""
        self.engine.check()
        self.store.check()
        self.arena.check()
        assert self.pool.num_available == self.pool.num_blocks
        assert self.store.num_holds == 0


MakeRig = Callable[..., Rig]


def host_tier(arena: Arena, budget_bytes: int) -> TierSpec:
    return tier(HostBackend(arena), "host", budget_bytes)


def tier(backend: Any, name: str, budget_bytes: int, **options: Any) -> TierSpec:
    return TierSpec(TierConfig(name, budget_bytes, **options), backend, LeafFirstLRU(), whole_blocks_that_fit)
