"""The replay against plain ones that are easy to believe, and against a store that holds real bytes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.simulate.optimum import Optimum, next_uses
from api.simulate.replay import replay
from api.simulate.tier import TracedTier
from api.simulate.trace import PrefixTree, Trace, TracedRequest, read_trace
from backends.host import HostBackend
from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.namespace import Namespace
from kvstore.registry import Kind, Registry
from kvstore.seams import EvictionPolicy
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import TierConfig, TierSpec
from policies.admission import whole_blocks_that_fit
from policies.builtin import register_builtin
from policies.lru import LeafFirstLRU

TRACES = Path(__file__).parent / "traces"
BLOCK_BYTES = 4096
SPACE = Namespace(sha256(b"weights").hexdigest(), "{}", "float32", "float32", block_tokens=4)


def trace_of(prompts: Sequence[Sequence[int]], times_ms: Sequence[float] | None = None) -> Trace:
    tree = PrefixTree()
    requests = [
        TracedRequest(at_ms, 4 * len(prompt), tree.walk(prompt))
        for prompt, at_ms in zip(prompts, times_ms or range(len(prompts)), strict=True)
    ]
    return Trace("made up", 4, requests, len(tree))


# Few different hashes and short prompts, so that prompts often begin alike.
PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=40)


def lru_hits(trace: Trace, capacity: int) -> Iterator[int]:
    """Leaf-first LRU, by looking at every resident block for each victim."""
    last_use: dict[int, int] = {}
    parent_of: dict[int, int] = {}
    num_uses = 0
    for request in trace.requests:
        prompt = list(request.blocks)
        resident = [block for block in prompt if block in last_use]
        yield len(resident)
        for block in reversed(resident):
            num_uses += 1
            last_use[block] = num_uses
        for place, block in enumerate(prompt):
            if block in last_use:
                continue
            if len(last_use) == capacity:
                parents = {parent_of[other] for other in last_use}
                leaves = [other for other in last_use if other not in parents and other not in prompt]
                if not leaves:
                    break
                del last_use[min(leaves, key=last_use.__getitem__)]
            num_uses += 1
            last_use[block] = num_uses
            parent_of[block] = prompt[place - 1] if place else -1


def optimal_hits(trace: Trace, capacity: int) -> Iterator[int]:
    """Keep the nearest next uses, by sorting all that is there after each request."""
    kept: set[int] = set()
    for number, request in enumerate(trace.requests):
        yield next((at for at, block in enumerate(request.blocks) if block not in kept), len(request.blocks))
        uses: dict[int, tuple[int, int]] = {}
        for later in range(len(trace.requests) - 1, number, -1):
            uses.update({block: (later, at) for at, block in enumerate(trace.requests[later].blocks)})
        candidates = (kept | set(request.blocks)) & uses.keys()
        kept = set(sorted(candidates, key=uses.__getitem__)[:capacity])


@given(PROMPTS, st.integers(1, 12))
def test_lru_hits_what_a_plain_lru_hits(prompts: list[list[int]], capacity: int) -> None:
    trace = trace_of(prompts)
    tier = TracedTier(trace, LeafFirstLRU(), capacity)
    assert [tier.serve(number) for number in range(len(prompts))] == list(lru_hits(trace, capacity))
    tier.check()
    assert len(tier) <= capacity


@given(PROMPTS, st.integers(1, 12))
def test_the_optimum_keeps_the_nearest_next_uses(prompts: list[list[int]], capacity: int) -> None:
    trace = trace_of(prompts)
    optimum = Optimum(next_uses(trace), capacity)
    hits = []
    for number in range(len(prompts)):
        hits.append(optimum.serve(number))
        assert len(optimum) <= capacity
    assert hits == list(optimal_hits(trace, capacity))
    assert sum(hits) >= sum(lru_hits(trace, capacity))


def test_what_an_answer_makes_anew_is_not_kept_for_later() -> None:
    tree = PrefixTree()
    requests = [
        TracedRequest(at_ms, 4 * len(prompt), tree.walk(prompt))
        for at_ms, prompt in enumerate([[9], [1, 2], [1], [1, 2], [9]])
    ]
    requests[2] = replace(requests[2], answer=tree.walk([2], requests[2].blocks[-1]))
    optimum = Optimum(next_uses(Trace("answers", 4, requests, len(tree))), 3)
    assert [optimum.serve(number) for number in range(5)] == [0, 0, 1, 2, 1]


def test_a_prompt_longer_than_the_cache_leaves_its_head() -> None:
    trace = trace_of([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]])
    tier = TracedTier(trace, LeafFirstLRU(), 3)
    assert (tier.serve(0), len(tier), tier.serve(1)) == (0, 3, 3)
    assert tier.resident() == set(trace.keys[:3])
    optimum = Optimum(next_uses(trace), 3)
    assert (optimum.serve(0), len(optimum), optimum.serve(1)) == (0, 3, 3)


def test_a_replay_counts_tokens_blocks_and_what_stays() -> None:
    requests = [TracedRequest(0.0, 10, array("I", [0, 1, 2])), TracedRequest(1.0, 10, array("I", [0, 1, 2]))]
    cell = replay(
        Trace("two", 4, requests, 3), "lru", 2, TracedTier(Trace("two", 4, requests, 3), LeafFirstLRU(), 2)
    )
    assert (cell.token_hit_ratio, cell.block_hit_ratio, cell.mean_blocks) == (8 / 20, 2 / 6, 2.0)


def test_a_last_block_that_is_partial_counts_the_tokens_it_has() -> None:
    requests = [TracedRequest(0.0, 10, array("I", [0, 1, 2])), TracedRequest(1.0, 10, array("I", [0, 1, 2]))]
    trace = Trace("two", 4, requests, 3)
    assert replay(trace, "OPT", 3, Optimum(next_uses(trace), 3)).token_hit_ratio == 10 / 20


@pytest.mark.parametrize(
    ("sample", "capacity", "lru", "optimum"),
    [("conversation", 200, 0.0358, 0.0641), ("agents", 1000, 0.3759, 0.6462)],
)
def test_the_samples_are_hit_as_often_as_plain_replays_say(
    sample: str, capacity: int, lru: float, optimum: float
) -> None:
    trace = read_trace(TRACES / f"{sample}.jsonl.xz")
    found = replay(trace, "lru", capacity, TracedTier(trace, LeafFirstLRU(), capacity))
    best = replay(trace, "OPT", capacity, Optimum(next_uses(trace), capacity))
    assert found.token_hit_ratio == pytest.approx(lru, abs=1e-4)
    assert best.token_hit_ratio == pytest.approx(optimum, abs=1e-4)
    assert found.block_hit_ratio * trace.num_accesses == pytest.approx(sum(lru_hits(trace, capacity)))


@pytest.mark.parametrize(("ttl_s", "num_hit"), [(None, 2), (10.0, 2), (9.999, 1)])
def test_blocks_end_when_their_time_is_over(ttl_s: float | None, num_hit: int) -> None:
    trace = trace_of([[1, 2], [1], [1, 2]], [0.0, 5_000.0, 9_999.5])
    tier = TracedTier(trace, LeafFirstLRU(), 8, ttl_s)
    tier.serve(0)
    assert tier.serve(1) == 1
    assert tier.serve(2) == num_hit


@dataclass
class LiveTier:
    """A store with one memory tier that serves a trace as an engine would, holding what it uses."""

    trace: Trace
    capacity: int
    policy: EvictionPolicy
    ttl_s: float | None
    now_ms: int = 0

    def __post_init__(self) -> None:
        arena = Arena((self.capacity + 1) * BLOCK_BYTES, slab_bytes=BLOCK_BYTES)
        config = TierConfig("host", self.capacity * BLOCK_BYTES)
        spec = TierSpec(config, HostBackend(arena), self.policy, whole_blocks_that_fit)
        clock = Clock(lambda: self.now_ms / 1000, lambda: self.now_ms)
        self.store = TieredStore([spec], arena, StoreConfig(default_ttl_s=self.ttl_s), clock)

    def serve(self, number: int) -> int:
        request, store = self.trace.requests[number], self.store
        self.now_ms = int(request.at_ms)
        keys = [self.trace.keys[block] for block in request.blocks]
        hit, deadline_s = store.lookup(keys), self.now_ms / 1000 + 10
        is_missing = [tier is None for tier in hit.tiers]
        used = [
            store.load(hit, at, deadline_s).take() for at, missing in enumerate(is_missing) if not missing
        ]
        lease = store.lookup([key for key, missing in zip(keys, is_missing, strict=True) if missing])
        hit.release()
        for at, key in enumerate(lease.keys):
            place = keys.index(key)
            payload = memoryview(key * (BLOCK_BYTES // len(key)))
            if store.put(SPACE, key, keys[place - 1] if place else b"", payload):
                used.append(store.load(lease, at, deadline_s).take())
        for block in used:
            assert block is not None
            block.release()
        lease.release()
        store.check()
        return is_missing.index(True) if True in is_missing else len(keys)

    def resident(self) -> set[bytes]:
        there = zip(self.trace.keys, self.store.peek(self.trace.keys), strict=True)
        return {key for key, tier in there if tier}


def eviction_policies() -> list[str]:
    registry = Registry()
    register_builtin(registry)
    return registry.names(Kind.EVICTION)


@pytest.mark.parametrize("name", eviction_policies())
@settings(deadline=None, max_examples=40)
@given(
    PROMPTS,
    st.integers(1, 12),
    st.sampled_from([None, 1.0, 5.0]),
    st.lists(st.integers(0, 2_500), min_size=40, max_size=40),
)
def test_a_live_tier_and_the_simulator_decide_alike(
    name: str, prompts: list[list[int]], capacity: int, ttl_s: float | None, gaps_ms: list[int]
) -> None:
    registry = Registry()
    register_builtin(registry)
    make_policy = registry.get(Kind.EVICTION, name)
    times_ms = [1000.0 + sum(gaps_ms[: at + 1]) for at in range(len(prompts))]
    trace = trace_of(prompts, times_ms)
    live = LiveTier(trace, capacity, make_policy(), ttl_s)
    simulated = TracedTier(trace, make_policy(), capacity, ttl_s)
    for number in range(len(prompts)):
        assert simulated.serve(number) == live.serve(number)
        assert simulated.resident() == live.resident()
        simulated.check()
    assert live.store.num_holds == 0
    live.store.close()
