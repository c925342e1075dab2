"""What is expected on paper is what an engine takes: for computing, for loading, and for both at once.

Steps and loads are made so slow that sleeping takes nearly all of their time. How slow is told to nobody:
the engine measures it when it starts, as on any machine, and the paper begins with what it found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pytest

from api.plan.outlook import Outcome, Server, outlook
from api.serving_config import serving_config
from api.settings import Settings
from backends.disk import DiskBackend
from backends.throttle import Throttled
from engine_adapter.assemble import Serving, assemble
from engine_adapter.engine.request import Request, Sampling
from engine_adapter.engine.runner import Chunk, ModelRunner
from engine_adapter.opening import builtin_registry
from engine_adapter.serving_config import TierSetup
from kvstore.registry import Kind
from policies.cost_model import ComputeCost, Work
from policies.planning import Plan, PlanRequest, ReloadPolicy
from policies.reload import AlwaysCompute, AlwaysLoad, Measured

PROMPT_TOKENS = 500
STEPS = ComputeCost(step_s=0.005, token_s=0.001, attended_s=2e-6)
BYTES_PER_S, LATENCY_S = 200e3, 0.02
LINE = "slow-line"
ROUNDS = 3
TOLERANCE = 0.25


class InTurn:
    """A policy that is another one from run to run, and remembers what it was told first."""

    weighs_costs = False

    def __init__(self) -> None:
        self.now: ReloadPolicy = AlwaysCompute()
        self.told: PlanRequest | None = None

    def plan(self, request: PlanRequest) -> Plan:
        self.told = self.told or request
        return self.now.plan(request)


@pytest.fixture
def in_turn() -> InTurn:
    return InTurn()


@pytest.fixture
def slow_serving(
    in_turn: InTurn,
    make_settings: Callable[..., Settings],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Serving]:
    registry = builtin_registry()
    registry.register(Kind.RELOAD, "in-turn", lambda: in_turn)
    registry.register(Kind.BACKEND, LINE, lambda path: Throttled(DiskBackend(path), BYTES_PER_S, LATENCY_S))
    tier = TierSetup(LINE, 2**25, "lru", "through", tmp_path / "blocks")
    config = replace(
        serving_config(make_settings()),
        tiers=(tier,),
        reload_policy="in-turn",
        cost_folder=tmp_path / "costs",
    )
    monkeypatch.setattr(ModelRunner, "forward", slowed(ModelRunner.forward))
    with closing(assemble(config, registry)) as serving:
        yield serving


def slowed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``forward`` taking as long as ``STEPS`` says, most of it asleep."""

    def slow(runner: ModelRunner, chunks: Sequence[Chunk]) -> Any:
        works = [Work.prefill(chunk.start, chunk.start + len(chunk.tokens)) for chunk in chunks]
        work = Work(sum(one.tokens for one in works), sum(one.attended for one in works))
        ends_s = time.monotonic() + STEPS.of(work)
        done = forward(runner, chunks)
        time.sleep(max(0.0, ends_s - time.monotonic()))
        return done

    return slow


def on_paper(told: PlanRequest) -> Outcome:
    server = Server(told.compute, told.chunk_tokens, told.block_tokens, told.block_bytes // told.block_tokens)
    (length,) = outlook(server, {LINE: told.loads[LINE]}, [PROMPT_TOKENS])
    return length.tiers[LINE]


def test_an_engine_takes_as_long_as_the_paper_says(slow_serving: Serving, in_turn: InTurn) -> None:
    prompt = Random(0).choices(range(256), k=PROMPT_TOKENS)
    request = Request(prompt, Sampling(temperature=0, max_tokens=1, ignore_eos=True))
    engine = slow_serving.engine
    engine.generate(request)
    assert engine.flush(30)
    assert slow_serving.store.flush(30)

    policies = (AlwaysCompute(), AlwaysLoad(), Measured())
    took_s: dict[ReloadPolicy, list[float]] = {policy: [] for policy in policies}
    for _ in range(ROUNDS):
        for policy in policies:
            slow_serving.clear("device")
            in_turn.now = policy
            ttft_s = engine.generate(request).usage.ttft_s
            assert ttft_s is not None
            took_s[policy].append(ttft_s)

    assert in_turn.told is not None
    expected = on_paper(in_turn.told)
    compute_s, load_s, both_s = (median(took_s[policy]) for policy in policies)
    assert compute_s == pytest.approx(expected.compute_s, rel=TOLERANCE)
    assert load_s == pytest.approx(expected.load_s, rel=TOLERANCE)
    assert both_s == pytest.approx(expected.both_s, rel=TOLERANCE)
    assert both_s / min(compute_s, load_s) == pytest.approx(expected.of_better, rel=TOLERANCE)
    assert expected.of_better < 0.65
