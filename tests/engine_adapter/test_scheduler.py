"""Who computes what, decided on a real pool and store, without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from backends.device import DevicePool
from backends.kv_shape import KVShape
from engine_adapter.engine.config import EngineConfig
from engine_adapter.engine.costs import CostBook
from engine_adapter.engine.detokenize import Detokenizer, TextStream
from engine_adapter.engine.events import COMPUTED
from engine_adapter.engine.namespaces import Namespaces
from engine_adapter.engine.ownership import Loads
from engine_adapter.engine.planner import NamedPolicy, Order, Planner
from engine_adapter.engine.prefix import PrefixCache
from engine_adapter.engine.request import CacheUse, Request
from engine_adapter.engine.scheduler import Scheduler, Work
from engine_adapter.engine.sequence import Sequence
from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.namespace import Namespace
from kvstore.store import TieredStore
from policies.cost_model import Work as StepWork
from policies.lru import LeafFirstLRU
from policies.reload import AlwaysLoad
from tests.engine_adapter.rig import host_tier, prompt_of

BLOCK = 4


class Desk:
    """A scheduler with ``num_blocks`` blocks of four tokens; ``compute`` plays the model."""

    def __init__(self, num_blocks: int, **limits: Any) -> None:
        arena = Arena(2**20)
        self.store = TieredStore([host_tier(arena, 2**19)], arena)
        added, removed = self.store.device_added, self.store.device_removed
        shape = KVShape(1, 1, 2, BLOCK, torch.float32)
        self.pool = DevicePool(shape, num_blocks, "cpu", LeafFirstLRU(), added, removed, Clock())
        namespace = Namespace("w", "{}", "float32", "float32", BLOCK)
        config = EngineConfig(**limits)
        self.costs = costs = CostBook(shape.block_bytes, "host")
        clock = Clock()
        loads = Loads(self.store, costs, clock, 10.0, lambda: None)
        self.prefix = PrefixCache(self.pool, self.store, Namespaces(namespace, {}), 30.0, loads)
        self.scheduler = Scheduler(self.prefix, costs, config, clock)
        policy = NamedPolicy("always-load", AlwaysLoad())
        self.planner = Planner(policy, costs, clock, shape, config.max_batched_tokens)
        self._numbers = iter(range(1000))

    def add(self, prompt: list[int], cache: CacheUse = CacheUse.ON, priority: int = 0) -> Sequence:
        text = TextStream(Detokenizer(str, bool, bool), ())
        request = Request(prompt, cache=cache, priority=priority)
        sequence = Sequence(next(self._numbers), request, lambda _: None, text, 0.0)
        self.scheduler.add(sequence)
        return sequence

    def admit_all(self, *, collects: bool = True) -> list[Sequence]:
        admitted = []
        while sequence := self.scheduler.admit():
            if hit := self.prefix.look_up(sequence):
                sequence.ownership.offer(hit)
            self.planner.review(sequence, Order([sequence], 0))
            if collects:
                self.prefix.collect(sequence, 0.0)
            admitted.append(sequence)
        return admitted

    def learn_cost(self, step_s: float, token_s: float) -> None:
        for num_tokens in (1, 32, 512):
            self.costs.note_step(StepWork(num_tokens, 0.0), step_s + num_tokens * token_s, 0.0)

    def store_below(self, prompt: list[int]) -> list[bytes]:
        """Compute ``prompt`` and leave it to the tiers below the device alone; returns its blocks' keys."""
        sequence = self.add(prompt)
        self.turn()
        keys = list(sequence.keys)
        self.scheduler.remove(sequence)
        self.prefix.clear()
        return keys

    def turn(self) -> list[tuple[int, int, int]]:
        """Admit, plan and compute; returns (number, start, end) of each work."""
        self.admit_all()
        assert self.scheduler.make_room() == []
        works = self.scheduler.plan()
        self.compute(works)
        self.prefix.traffic.store_all()
        self.scheduler.check()
        self.pool.check()
        return [(work.sequence.number, work.start, work.end) for work in works]

    def compute(self, works: list[Work]) -> None:
        for work in works:
            work.sequence.move_to(work.end, COMPUTED)
            if work.chooses:
                work.sequence.tokens.append(9)
            self.prefix.publish(work.sequence, work.start)


MakeDesk = Callable[..., Desk]


@pytest.fixture
def make_desk() -> Iterator[MakeDesk]:
    desks: list[Desk] = []

    def make(num_blocks: int = 32, **limits: Any) -> Desk:
        desks.append(Desk(num_blocks, **{"max_batched_tokens": 10, "max_sequences": 4, **limits}))
        return desks[-1]

    yield make
    for desk in desks:
        for sequence in [*desk.scheduler.running, *desk.scheduler.waiting]:
            desk.scheduler.remove(sequence)
        desk.prefix.traffic.store_all()
        desk.scheduler.check()
        assert desk.pool.num_available == desk.pool.num_blocks
        assert desk.store.num_holds == 0
        desk.store.close(5)


def test_prefill_is_cut_to_the_budget_and_goes_on_where_it_stopped(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.add(prompt_of(23, 1))

    assert [desk.turn() for _ in range(4)] == [[(0, 0, 10)], [(0, 10, 20)], [(0, 20, 23)], [(0, 23, 24)]]


def test_what_one_prefill_leaves_of_the_budget_goes_to_the_next(make_desk: MakeDesk) -> None:
    desk = make_desk()
    for length in (7, 5, 6):
        desk.add(prompt_of(length, length))

    assert desk.turn() == [(0, 0, 7), (1, 0, 3)]
    assert desk.turn() == [(0, 7, 8), (1, 3, 5), (2, 0, 6)]
    assert desk.turn() == [(0, 8, 9), (1, 5, 6), (2, 6, 7)]


def test_a_first_token_does_not_wait_for_a_long_chunk_of_the_next(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.learn_cost(step_s=0.0, token_s=0.001)
    for length in (7, 5):
        desk.add(prompt_of(length, length))

    assert desk.turn() == [(0, 0, 7)]
    assert desk.turn() == [(0, 7, 8), (1, 0, 5)]


def test_who_waits_for_loads_does_not_wait_for_a_long_chunk_of_the_next(make_desk: MakeDesk) -> None:
    desk, prompt = make_desk(max_batched_tokens=64), prompt_of(22, 1)
    desk.store_below(prompt)
    again, other = desk.add(prompt), desk.add(prompt_of(20, 2))
    desk.learn_cost(step_s=0.0, token_s=0.001)
    desk.costs.note_copy(0.001, 0.0)
    desk.admit_all(collects=False)

    works = desk.scheduler.plan()
    assert [(work.sequence, work.start, work.end) for work in works] == [(other, 0, BLOCK)]
    desk.compute(works)
    desk.prefix.collect(again, 0.0)
    works = desk.scheduler.plan()
    assert [(work.sequence, work.start, work.end) for work in works] == [(again, 20, 22)]


def test_loads_of_which_nothing_is_known_hold_nobody_up(make_desk: MakeDesk) -> None:
    desk, prompt = make_desk(max_batched_tokens=64), prompt_of(22, 1)
    desk.store_below(prompt)
    _, other = desk.add(prompt), desk.add(prompt_of(20, 2))
    desk.learn_cost(step_s=0.0, token_s=0.001)
    desk.admit_all(collects=False)

    assert [(work.sequence, work.start, work.end) for work in desk.scheduler.plan()] == [(other, 0, 20)]


def test_who_comes_to_a_ready_block_does_not_wait_for_a_long_chunk_of_the_next(make_desk: MakeDesk) -> None:
    desk, prompt = make_desk(max_batched_tokens=64), prompt_of(22, 1)
    keys = desk.store_below(prompt)
    assert desk.store.evict(keys[:1]) == 1
    desk.add(prompt)
    desk.add(prompt_of(30, 2))
    desk.learn_cost(step_s=0.0, token_s=0.001)

    assert [desk.turn() for _ in range(2)] == [[(1, 0, 4)], [(1, 20, 22)]]


def test_a_chunk_that_saves_those_behind_it_a_step_joins(make_desk: MakeDesk) -> None:
    desk = make_desk(max_batched_tokens=64, max_sequences=3)
    desk.learn_cost(step_s=0.004, token_s=0.001)
    for length in (7, 8, 9, 10):
        desk.add(prompt_of(length, length))

    # The second costs the first 8 ms and saves itself and two others 4 ms each, one not admitted yet;
    # the third would cost two 9 ms each.
    assert desk.turn() == [(0, 0, 7), (1, 0, 8)]


def test_running_sequences_decode_before_anybody_is_prefilled(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.add(prompt_of(3, 1))
    desk.turn()
    desk.add(prompt_of(30, 2))

    assert desk.turn() == [(0, 3, 4), (1, 0, 9)]
    assert desk.turn() == [(0, 4, 5), (1, 9, 18)]


def test_no_more_run_than_may(make_desk: MakeDesk) -> None:
    desk = make_desk(max_sequences=2)
    for seed in range(3):
        desk.add(prompt_of(2, seed))

    assert [work[0] for work in desk.turn()] == [0, 1]
    assert len(desk.scheduler.waiting) == 1
    desk.scheduler.remove(desk.scheduler.running[0])
    assert [work[0] for work in desk.turn()] == [1, 2]


def test_a_newcomer_leaves_each_running_sequence_a_block_to_grow(make_desk: MakeDesk) -> None:
    desk = make_desk(num_blocks=5)
    desk.add(prompt_of(8, 1))
    desk.add(prompt_of(12, 2))

    assert [sequence.number for sequence in desk.admit_all()] == [0]
    assert len(desk.scheduler.waiting) == 1


def test_the_queue_is_served_in_order(make_desk: MakeDesk) -> None:
    desk = make_desk(num_blocks=4)
    desk.add(prompt_of(8, 1))
    desk.add(prompt_of(12, 2))
    desk.add(prompt_of(4, 3))

    assert [sequence.number for sequence in desk.admit_all()] == [0]


def test_a_block_that_another_computes_in_this_step_is_left_to_it(make_desk: MakeDesk) -> None:
    desk, stem = make_desk(max_batched_tokens=40), prompt_of(8, 1)
    first, second = desk.add([*stem, 1, 2]), desk.add([*stem, 3])

    assert desk.turn() == [(0, 0, 10)]
    assert desk.turn() == [(0, 10, 11), (1, 8, 9)]
    assert second.blocks[:2] == first.blocks[:2]
    assert second.tokens_by_source == {"device": 8, COMPUTED: 1}


def test_whoever_does_not_read_the_cache_computes_for_itself(make_desk: MakeDesk) -> None:
    desk, prompt = make_desk(max_batched_tokens=40), prompt_of(8, 1)
    desk.add(prompt)
    desk.add(prompt, CacheUse.WRITE)
    desk.add(prompt, CacheUse.OFF)

    assert desk.turn() == [(0, 0, 8), (1, 0, 8), (2, 0, 8)]


def test_blocks_published_while_a_sequence_computes_are_shared(make_desk: MakeDesk) -> None:
    desk, stem = make_desk(max_batched_tokens=4), prompt_of(12, 1)
    desk.add(stem)
    desk.add([*stem, 1])
    assert [desk.turn() for _ in range(3)] == [[(0, 0, 4)], [(0, 4, 8)], [(0, 8, 12)]]

    assert desk.turn() == [(0, 12, 13), (1, 12, 13)]


def test_computing_stops_at_a_ready_block_and_goes_on_behind_it(make_desk: MakeDesk) -> None:
    desk, prompt = make_desk(max_batched_tokens=64), prompt_of(22, 1)
    keys = desk.store_below(prompt)
    assert desk.store.evict([keys[0], keys[2], keys[3]]) == 3
    again = desk.add(prompt)

    assert [desk.turn() for _ in range(3)] == [[(1, 0, 4)], [(1, 8, 16)], [(1, 20, 22)]]
    assert again.tokens_by_source == {COMPUTED: 4 + 8 + 2, "host": 8}


def test_the_youngest_is_preempted_and_comes_back_first(make_desk: MakeDesk) -> None:
    desk = make_desk(num_blocks=6, max_batched_tokens=64)
    older, younger = desk.add(prompt_of(7, 1), CacheUse.OFF), desk.add(prompt_of(7, 2), CacheUse.OFF)
    waiting = desk.add(prompt_of(20, 3), CacheUse.OFF)
    for _ in range(6):
        desk.turn()

    while not desk.scheduler.num_preempted:
        desk.turn()

    assert desk.scheduler.running == [older]
    assert desk.scheduler.waiting == [younger, waiting]
    assert (younger.num_computed, younger.blocks) == (0, [])
    tokens = list(younger.tokens)
    desk.scheduler.remove(older)
    assert desk.turn() == [(younger.number, 0, len(tokens))]
    assert younger.tokens[:-1] == tokens


def test_a_sequence_that_needs_more_than_the_pool_cannot_go_on(make_desk: MakeDesk) -> None:
    desk = make_desk(num_blocks=2, max_batched_tokens=64)
    sequence = desk.add(prompt_of(8, 1))
    desk.turn()

    assert desk.scheduler.make_room() == [sequence]


def test_the_smaller_priority_goes_first_and_among_equals_who_came_first(make_desk: MakeDesk) -> None:
    desk = make_desk(max_sequences=1)
    for priority in (0, 5, -5, 0, -5):
        desk.add(prompt_of(2, priority + 5), priority=priority)

    served = []
    while desk.scheduler.waiting:
        served += [sequence.number for sequence in desk.admit_all()]
        desk.scheduler.remove(desk.scheduler.running[0])
    assert served == [2, 4, 0, 3, 1]


def test_a_prompt_of_better_priority_is_computed_before_one_that_runs(make_desk: MakeDesk) -> None:
    desk = make_desk()
    desk.add(prompt_of(25, 1))
    assert desk.turn() == [(0, 0, 10)]
    desk.add(prompt_of(12, 2), priority=-1)

    assert [desk.turn() for _ in range(2)] == [[(1, 0, 10)], [(1, 10, 12), (0, 10, 18)]]


def test_the_worst_priority_gives_way_however_old(make_desk: MakeDesk) -> None:
    desk = make_desk(num_blocks=6, max_batched_tokens=64)
    worse, better = desk.add(prompt_of(7, 1), priority=1), desk.add(prompt_of(7, 2))

    while not desk.scheduler.num_preempted:
        desk.turn()

    assert (desk.scheduler.running, desk.scheduler.waiting) == ([better], [worse])


def test_who_is_preempted_comes_back_before_newer_ones_of_its_class_alone(make_desk: MakeDesk) -> None:
    desk = make_desk(num_blocks=6, max_batched_tokens=64)
    _, younger = desk.add(prompt_of(7, 1)), desk.add(prompt_of(7, 2))
    desk.turn()
    newer, better = desk.add(prompt_of(20, 3)), desk.add(prompt_of(20, 4), priority=-1)
    while not desk.scheduler.num_preempted:
        desk.turn()

    assert desk.scheduler.waiting == [better, younger, newer]


def test_who_is_brought_back_soonest_gives_way_before_a_younger_one(make_desk: MakeDesk) -> None:
    desk = make_desk(num_blocks=10, max_batched_tokens=64)
    desk.learn_cost(step_s=0.001, token_s=0.001)
    first, short, long = (desk.add(prompt_of(num, num), CacheUse.OFF) for num in (2, 3, 19))

    while not desk.scheduler.num_preempted:
        desk.turn()

    assert (desk.scheduler.running, desk.scheduler.waiting) == ([first, long], [short])


def test_the_first_of_all_never_gives_way(make_desk: MakeDesk) -> None:
    desk = make_desk(num_blocks=8, max_batched_tokens=64)
    desk.learn_cost(step_s=0.001, token_s=0.001)
    first = desk.add(prompt_of(2, 1), CacheUse.OFF)
    for seed in (2, 3):
        desk.add(prompt_of(9, seed), CacheUse.OFF)

    while len(first.tokens) < 8 * BLOCK:
        assert first.number in [number for number, _, _ in desk.turn()]
    assert desk.scheduler.num_preempted > 0


def test_costs_are_looked_at_once_for_all_who_might_give_way(
    make_desk: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = make_desk(num_blocks=12, max_batched_tokens=64)
    desk.learn_cost(step_s=0.001, token_s=0.001)
    for seed in range(4):
        desk.add(prompt_of(9, seed))
    while desk.pool.num_available:
        desk.turn()
    look = Mock(side_effect=desk.costs.loads)
    monkeypatch.setattr(desk.costs, "loads", look)

    while not desk.scheduler.num_preempted:
        desk.compute(desk.scheduler.plan())
        desk.scheduler.make_room()

    assert desk.scheduler.num_preempted == look.call_count == 1
