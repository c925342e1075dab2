"""A stand-in for vLLM around both sides of its connector: it schedules one request, and computes numbers.

What a block should hold follows from the tokens up to its end alone, so a wrong block is seen at once.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from xxhash import xxh3_64_intdigest

from engine_adapter.cost_file import CostFile
from engine_adapter.engine.costs import CostBook
from engine_adapter.faults import Faults
from engine_adapter.vllm.announcing import Announcer
from engine_adapter.vllm.counts import Counts
from engine_adapter.vllm.deciding import Decider, Sizes
from engine_adapter.vllm.identity import Scopes
from engine_adapter.vllm.orders import Step, Told
from engine_adapter.vllm.pool import Pool
from engine_adapter.vllm.probing import Prober
from engine_adapter.vllm.promising import Promiser
from engine_adapter.vllm.scheduler import SchedulerSide
from engine_adapter.vllm.settings import AdapterSettings
from engine_adapter.vllm.worker import WorkerSide
from kvstore.interface import BlockStore
from kvstore.keys import token_bytes
from kvstore.namespace import Namespace
from policies.reload import AlwaysLoad, Measured

BLOCK = 4
NUM_LAYERS, HEADS, NUMBERS = 2, 3, 8
NUM_BLOCKS = 64
PROMPT = list(range(3, 3 + 42))
WHOLE = 40
"""Tokens of its whole blocks."""
_numbers = count()


def request(tokens: Sequence[int], **facts: Any) -> Any:
    """Return what the connector looks at of a request of vLLM's."""
    told: dict[str, Any] = {
        "request_id": f"r{next(_numbers)}", "all_token_ids": list(tokens), "num_tokens": len(tokens),
        "mm_features": [], "prompt_embeds": None, "lora_request": None, "cache_salt": None,
        "skip_reading_prefix_cache": False, "resumable": False, "num_computed_tokens": 0,
        "block_hashes": [bytes([index + 1]) * 32 for index in range(len(tokens) // BLOCK)],
    }  # fmt: skip
    return SimpleNamespace(**told | facts)


def numbers_of(tokens: Sequence[int], rank: int) -> torch.Tensor:
    """Return what the block holds that ends these tokens: ``[layers, heads, block, numbers]``."""
    seed = xxh3_64_intdigest(token_bytes(tokens), rank) >> 1
    drawn = torch.randn(
        NUM_LAYERS, HEADS, BLOCK, NUMBERS, generator=torch.Generator().manual_seed(seed)
    )  # fmt: skip
    return drawn.to(torch.bfloat16)


@dataclass(slots=True)
class Served:
    """One request that was served: what it did not compute, and where its blocks are."""

    num_loaded: int
    block_ids: list[int]
    is_async: bool
    num_steps: int


@dataclass
class Vllm:
    """Both sides over ``store``, with a worker for each rank."""

    store: BlockStore
    folder: Path
    given: dict[str, Any] = field(default_factory=dict)
    num_ranks: int = 1

    def __post_init__(self) -> None:
        self.settings = AdapterSettings.parse({"reload_policy": "always-load"} | self.given)
        self.faults = Faults(logging.getLogger("test"))
        self.caches = [
            {
                f"layer{layer}": torch.zeros(NUM_BLOCKS, HEADS, BLOCK, NUMBERS, dtype=torch.bfloat16)
                for layer in range(NUM_LAYERS)
            }
            for _ in range(self.num_ranks)
        ]
        pools = [Pool(caches, NUM_BLOCKS) for caches in self.caches]
        self.workers = [WorkerSide(self.store, pool, rank, self.settings) for rank, pool in enumerate(pools)]
        self.block_bytes = pools[0].block_bytes
        policy = AlwaysLoad() if self.settings.reload_policy == "always-load" else Measured()
        memory = None if self.settings.is_shared else "host"
        self.costs = CostBook(self.block_bytes, memory)
        self.promiser = Promiser(
            self.store, Decider(policy, self.costs, Sizes(BLOCK, self.block_bytes, 1024)),
            Prober(self.store, self.block_bytes), self.settings, Counts(), Announcer(self.store),
            may_wait=self.num_ranks == 1,
        )  # fmt: skip
        namespace = Namespace("w", "{}", "bfloat16", "bfloat16", BLOCK, tp_size=self.num_ranks)
        kept = CostFile(self.folder, "test")
        self.side = SchedulerSide(
            namespace, Scopes(self.folder / "digests"), self.promiser, kept, self.faults
        )
        self.free = list(range(NUM_BLOCKS))
        self.counted: dict[str, int] = {}
        self.num_finished: Counter[str] = Counter()

    def serve(self, asked: Any, chunk: int = 1000, num_local: int = 0, *, may_fail: bool = False) -> Served:
        """Serve a request as vLLM does, up to its first token; its blocks must be right."""
        num_blocks = -(-asked.num_tokens // BLOCK)
        block_ids, self.free = self.free[:num_blocks], self.free[num_blocks:]
        self.compute(asked, block_ids, 0, num_local)
        num_loaded, is_async = self.admit(asked, block_ids, num_local)
        position, num_steps = num_local + num_loaded, 0
        failed = set[int]()
        while is_async:
            made = self.step({}, may_fail=may_fail)
            failed |= made.failed
            num_steps += 1
            if asked.request_id in made.finished:
                break
        self.last_failed = failed
        if failed:
            position = self.first_failed(block_ids) * BLOCK
            num_loaded = position - num_local
            if not position:
                assert self.side.num_to_load(asked, 0) == (0, False)
            self.side.allocated(asked, block_ids, 0)
        while position < asked.num_tokens:
            end = min(position + chunk, asked.num_tokens)
            self.step({asked.request_id: (asked, block_ids, position, end)}, may_fail=may_fail)
            num_steps += 1
            position = end
            if self.last_failed:
                position = self.first_failed(block_ids) * BLOCK
                num_loaded = position - num_local
        self.check(asked, block_ids)
        self.side.ended(asked)
        self.free += block_ids
        return Served(num_loaded, block_ids, is_async, num_steps)

    def admit(self, asked: Any, block_ids: list[int], num_local: int = 0) -> tuple[int, bool]:
        """Ask what is to be loaded, and allocate."""
        nothing: tuple[int | None, bool] = (0, False)
        num_loaded, is_async = self.faults.caught(lambda: self.side.num_to_load(asked, num_local), nothing)
        assert num_loaded is not None
        assert num_local + num_loaded < asked.num_tokens
        self.side.allocated(asked, block_ids, num_loaded)
        return num_loaded, is_async

    def step(self, parts: dict[str, tuple[Any, list[int], int, int]], *, may_fail: bool = False) -> Any:
        """Make a step that computes ``(request, block_ids, start, end)``."""
        output = SimpleNamespace(
            scheduled_new_reqs=[
                SimpleNamespace(req_id=name, num_computed_tokens=start)
                for name, (_, _, start, _) in parts.items()
            ],
            scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[]),
            num_scheduled_tokens={name: end - start for name, (_, _, start, end) in parts.items()},
            scheduled_spec_decode_tokens={},
            kv_connector_block_state=SimpleNamespace(get_block_ids=lambda name: (parts[name][1],)),
        )
        planned = self.side.plan_step(output)
        return self.make(planned, parts, may_fail=may_fail)

    def make(
        self, planned: Step, parts: dict[str, tuple[Any, list[int], int, int]], *, may_fail: bool
    ) -> Any:
        """Make a planned step on all workers."""
        failed, told, done = set[int](), Told(planned.number), set[str]()
        for worker in self.workers:
            worker.start_loads(planned, self.faults)
        for asked, block_ids, start, end in parts.values():
            self.compute(asked, block_ids, start, end)
        for worker in self.workers:
            self.faults.caught(lambda worker=worker: worker.store_blocks(planned), None)  # type: ignore[misc]
            for name in worker.finished_loads(set(), self.faults):
                self.num_finished[name] += 1
                done |= {name} if self.num_finished[name] == self.num_ranks else set()
            failed |= worker.take_failed()
            told.add(worker.take_told(self.faults.take()))
        assert may_fail or not failed
        self.last_failed = failed
        self.last_spoilt = self.side.spoilt(failed)
        self.side.note_output(done, failed, told)
        for name, amount in self.side.counts.take().items():
            self.counted[name] = self.counted.get(name, 0) + amount
        return SimpleNamespace(finished=done, failed=failed)

    def first_failed(self, block_ids: list[int]) -> int:
        return min(index for index, block_id in enumerate(block_ids) if block_id in self.last_failed)

    def compute(self, asked: Any, block_ids: list[int], start: int, end: int) -> None:
        """Fill the whole blocks that end in these positions; behind a wrong block, with wrong numbers."""
        for index in range(start // BLOCK, end // BLOCK):
            is_right = index * BLOCK < start or index == 0 or self._is_right(asked, block_ids, index - 1)
            for rank in range(self.num_ranks):
                numbers = numbers_of(asked.all_token_ids[: (index + 1) * BLOCK], rank)
                self._write(rank, block_ids[index], numbers if is_right else numbers + 1)

    def check(self, asked: Any, block_ids: list[int]) -> None:
        """Assert that all whole blocks of a request hold what they should."""
        for index in range(asked.num_tokens // BLOCK):
            assert self._is_right(asked, block_ids, index), f"block {index} is wrong"

    def _is_right(self, asked: Any, block_ids: list[int], index: int) -> bool:
        wanted = [
            numbers_of(asked.all_token_ids[: (index + 1) * BLOCK], rank) for rank in range(self.num_ranks)
        ]
        return all(
            torch.equal(self.caches[rank][f"layer{layer}"][block_ids[index]], numbers[layer])
            for rank, numbers in enumerate(wanted)
            for layer in range(NUM_LAYERS)
        )

    def _write(self, rank: int, block_id: int, numbers: torch.Tensor) -> None:
        for layer in range(NUM_LAYERS):
            self.caches[rank][f"layer{layer}"][block_id] = numbers[layer]

    def wipe(self) -> None:
        """Forget all that vLLM's pool holds."""
        for caches in self.caches:
            for cache in caches.values():
                cache.fill_(7)


OpenVllm = Callable[..., Vllm]
"""Opens one: ``(script=None, *, store=None, ranks=1, **settings)``."""
