from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Event as Flag
from typing import Any

import pytest

from backends.device import DevicePool
from backends.faulty import Action, Fault, Faulty, Operation, fail, miss, stall
from backends.host import HostBackend
from backends.throttle import Throttled
from engine_adapter import calibrate
from engine_adapter.calibrate import measure_copy, measure_steps, measure_tiers
from engine_adapter.engine.costs import CostBook
from engine_adapter.engine.models import LoadedModel
from engine_adapter.engine.runner import Chunk, ModelRunner
from engine_adapter.engine.sdpa import SdpaAttention
from kvstore.arena import Arena
from kvstore.clock import Clock
from policies.lru import LeafFirstLRU
from tests.engine_adapter.rig import BLOCK_TOKENS, MakeRig
from tests.eventually import eventually

BLOCK_BYTES = 100_000


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(2**24)
    yield arena
    arena.check()
    arena.close()


def pool_of(model: LoadedModel, num_blocks: int) -> DevicePool:
    shape = model.kv_shape
    return DevicePool(
        shape, num_blocks, model.device, LeafFirstLRU(), lambda *_: None, lambda *_: None, Clock()
    )


@pytest.mark.parametrize("num_blocks", [2, 20, 256])
def test_steps_are_measured_on_blocks_that_are_given_back(tiny_model: LoadedModel, num_blocks: int) -> None:
    pool, costs = pool_of(tiny_model, num_blocks), CostBook(tiny_model.kv_shape.block_bytes)

    measure_steps(ModelRunner(tiny_model.model, pool, SdpaAttention()), pool, costs, Clock(), 512)

    cost = costs.compute()
    assert cost is not None
    assert 0 < cost.prefill_s(0, 512, 512) < 60
    assert pool.num_free == num_blocks
    pool.check()


def test_steps_are_measured_no_longer_than_there_is_time(tiny_model: LoadedModel) -> None:
    pool, costs = pool_of(tiny_model, 256), CostBook(tiny_model.kv_shape.block_bytes)
    times = iter(range(1000))  # a second passes whenever somebody looks

    measure_steps(
        ModelRunner(tiny_model.model, pool, SdpaAttention()),
        pool,
        costs,
        Clock(monotonic_s=lambda: float(next(times))),
        512,
    )

    assert next(times) < 10
    assert pool.num_free == 256


class SlowAtFirst:
    """A runner that reads its weights in the first step, for a minute; so much a token from then on."""

    def __init__(self, token_s: float) -> None:
        self.now_s = 0.0
        self._token_s = token_s
        self._is_warm = False

    def forward(self, chunks: Sequence[Chunk]) -> None:
        self.now_s += self._token_s * sum(len(chunk.tokens) for chunk in chunks) if self._is_warm else 60.0
        self._is_warm = True


@pytest.mark.parametrize("token_s", [0.001, 0.02], ids=["usual", "time for two kinds of steps only"])
def test_a_first_step_that_takes_a_minute_leaves_time_to_measure_others(
    token_s: float, make_rig: MakeRig
) -> None:
    slow = SlowAtFirst(token_s)
    runner: Any = slow
    rig, costs = make_rig(num_blocks=256), CostBook(BLOCK_TOKENS * 1024)
    measure_steps(runner, rig.pool, costs, Clock(monotonic_s=lambda: slow.now_s), most_tokens=512)
    cost = costs.compute()
    assert cost is not None
    assert cost.prefill_s(0, 128, 512) == pytest.approx(128 * token_s, rel=0.05)
    assert cost.prefill_s(0, 16, 512) == pytest.approx(16 * token_s, rel=0.05)


class Compiles(SlowAtFirst):
    """A runner whose kernels are compiled by the first step of each size."""

    def __init__(self, token_s: float) -> None:
        super().__init__(token_s)
        self._sizes: set[int] = set()

    def forward(self, chunks: Sequence[Chunk]) -> None:
        num_tokens = len(chunks[0].tokens)
        self._is_warm = num_tokens in self._sizes
        self._sizes.add(num_tokens)
        super().forward(chunks)


def test_no_step_that_waits_for_a_compiler_is_taken_for_what_steps_cost(make_rig: MakeRig) -> None:
    compiles = Compiles(0.001)
    runner: Any = compiles
    rig, costs = make_rig(num_blocks=256), CostBook(BLOCK_TOKENS * 1024)
    clock = Clock(monotonic_s=lambda: compiles.now_s)
    measure_steps(runner, rig.pool, costs, clock, most_tokens=512, is_compiled=True)
    cost = costs.compute()
    assert cost is not None
    assert cost.prefill_s(0, 512, 512) == pytest.approx(0.512, rel=0.05)


def test_a_copy_is_measured_and_its_memory_given_back(tiny_model: LoadedModel, arena: Arena) -> None:
    pool, costs = pool_of(tiny_model, 4), CostBook(tiny_model.kv_shape.block_bytes, "host")

    measure_copy(pool, arena, costs, Clock())

    assert costs.loads(0.0)["host"].bytes_per_s > 0
    assert (pool.num_free, arena.used_bytes) == (4, 0)


class Time:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.clock = Clock(monotonic_s=lambda: self.now_s)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize(("bytes_per_s", "latency_s"), [(50e6, 0.001), (20e6, 0.02), (1e9, 0.0001)])
def test_latency_and_rate_of_a_tier_are_measured_and_nothing_is_left(
    arena: Arena, bytes_per_s: float, latency_s: float
) -> None:
    inner, costs, time = HostBackend(Arena(2**24)), CostBook(BLOCK_BYTES), Time()
    line = Throttled(inner, bytes_per_s, latency_s, time.clock, time.sleep)

    measure_tiers({"disk": line}, arena, BLOCK_BYTES, costs, time.clock)

    load = costs.loads(time.now_s)["disk"]
    assert load.bytes_per_s == pytest.approx(bytes_per_s, rel=0.05)
    assert load.load_s(BLOCK_BYTES) == pytest.approx(latency_s + BLOCK_BYTES / bytes_per_s, rel=0.05)
    assert arena.used_bytes == inner.stats().occupied_bytes == 0


def test_of_a_tier_too_slow_for_more_one_block_is_measured(arena: Arena) -> None:
    costs, time = CostBook(BLOCK_BYTES), Time()
    slow = Throttled(HostBackend(Arena(2**24)), 1e6, 0.05, time.clock, time.sleep)

    measure_tiers({"disk": slow}, arena, BLOCK_BYTES, costs, time.clock)

    assert costs.loads(time.now_s)["disk"].load_s(BLOCK_BYTES) == pytest.approx(0.15, rel=0.05)


@pytest.mark.parametrize("operation", [Operation.PUT, Operation.GET])
@pytest.mark.parametrize("action", [miss, fail(OSError("gone"))], ids=["miss", "fault"])
def test_a_tier_that_fails_stays_unmeasured(arena: Arena, operation: Operation, action: Action) -> None:
    costs = CostBook(BLOCK_BYTES)
    broken = Faulty(HostBackend(Arena(2**24)), [Fault(operation, action)])

    measure_tiers({"disk": broken}, arena, BLOCK_BYTES, costs, Clock())

    assert costs.loads(0.0) == {}
    assert arena.used_bytes == 0


def test_a_tier_that_does_not_answer_is_not_waited_for(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "_TIERS_BUDGET_S", 0.1)
    gate, costs = Flag(), CostBook(BLOCK_BYTES)
    stalled = Faulty(HostBackend(Arena(2**24)), [Fault(Operation.GET, stall(gate.wait))])

    measure_tiers({"disk": stalled, "redis": HostBackend(Arena(2**24))}, arena, BLOCK_BYTES, costs, Clock())

    assert costs.loads(0.0).keys() == {"redis"}
    gate.set()
    eventually(lambda: arena.used_bytes == 0)
