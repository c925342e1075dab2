"""Blocks that go over from loading to computing and back, while loads end late, early, twice or never."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine_adapter.engine.costs import CostBook
from engine_adapter.engine.ownership import Loads, Owner, Ownership
from kvstore.clock import Clock
from kvstore.errors import LeaseExpiredError, StoreClosedError
from kvstore.leases import Hit
from kvstore.loading import Load, LoadedBlock, SharedBytes, Ticket
from kvstore.tier import DEVICE
from policies.planning import READY, Choice

NUM_BLOCKS = 8
BLOCK_BYTES = 1000
DEADLINE_S = 5.0

EVENTS = ["shared", "shared", "computed", "computed", "lease over", "store closed", "closed"]

blocks = st.integers(0, NUM_BLOCKS - 1)
sources = st.lists(
    st.sampled_from(["disk", "disk", "redis", None, DEVICE]), min_size=NUM_BLOCKS, max_size=NUM_BLOCKS
)


@dataclass
class Watched:
    """A ticket that knows what became of it."""

    ticket: Ticket
    index: int
    ends: list[str] = field(default_factory=list)

    def done(self) -> bool:
        return self.ticket.done()

    def take(self) -> LoadedBlock | None:
        assert self.ticket.done(), "taken before the transfer has reported"
        self.ends.append("taken")
        return self.ticket.take()

    def abandon(self) -> None:
        self.ends.append("abandoned")
        self.ticket.abandon()

    def __hash__(self) -> int:
        return id(self)


class HandDriven:
    """Stands for a store whose transfers report when the test says so."""

    def __init__(self) -> None:
        self.is_closed = False
        self.ends_at_once = ""
        self.tickets: list[Watched] = []
        self.loads: list[tuple[Load, int]] = []
        self.num_lent = self.num_given_back = 0

    def load(self, hit: Hit, index: int, _deadline_s: float, on_done: Any) -> Watched:
        if self.is_closed:
            raise StoreClosedError
        if not hit.is_leased:
            raise LeaseExpiredError(0.0)
        load = Load()
        watched = Watched(Ticket.on(load, on_done, None), index)
        self.tickets.append(watched)
        self.loads.append((load, index))
        if self.ends_at_once:
            self.finish(len(self.loads) - 1, is_hit=self.ends_at_once == "hit")
        return watched

    def finish(self, number: int, *, is_hit: bool) -> None:
        """Let a transfer report; it may have reported before, and nobody may be waiting."""
        load, index = self.loads[number]
        load.finish((lambda num_readers: self._lend(index, num_readers)) if is_hit else None)

    def _lend(self, index: int, num_readers: int) -> SharedBytes:
        self.num_lent += 1
        data = memoryview(bytes([index]) * BLOCK_BYTES)
        return SharedBytes(data, self._give_back, tier="disk", num_readers=num_readers)

    def _give_back(self) -> None:
        self.num_given_back += 1


class Takeover(RuleBasedStateMachine):
    """One prompt of eight blocks, computed from the front while its blocks are loaded from the back."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.store = HandDriven()
        self.costs = CostBook(BLOCK_BYTES)
        clock = Clock(monotonic_s=lambda: self.now_s)
        loads = Loads(cast("Any", self.store), self.costs, clock, DEADLINE_S, lambda: None)
        self.ownership = Ownership(NUM_BLOCKS, loads)
        self.hits: list[Hit] = []
        self.begun: set[int] = set()
        self.ready: set[int] = set()
        self.is_closed = False

    def position(self) -> int:
        """Return the first block that is neither there nor computed."""
        done = self.begun | self.ready
        return next((index for index in range(NUM_BLOCKS) if index not in done), NUM_BLOCKS)

    @precondition(lambda self: not self.is_closed)
    @rule(tiers=sources)
    def look_up(self, tiers: list[str | None]) -> None:
        hit = Hit([], tuple(tiers), [], self.now_s + 60, lambda _records: None)
        self.hits.append(hit)
        self.ownership.offer(hit)

    @rule(
        choices=st.lists(st.sampled_from(Choice), min_size=NUM_BLOCKS, max_size=NUM_BLOCKS),
        probes=st.sets(blocks, max_size=2),
    )
    def plan(self, choices: list[Choice], probes: set[int]) -> None:
        self.ownership.follow(choices, tuple(probes), self.position())

    @rule(ends_at_once=st.sampled_from(["", "", "", "hit", "miss"]))
    def start(self, ends_at_once: str) -> None:
        self.store.ends_at_once = ends_at_once
        self.ownership.start()

    @precondition(lambda self: self.store.loads)
    @rule(data=st.data(), is_hit=st.booleans())
    def report(self, data: st.DataObject, *, is_hit: bool) -> None:
        self.store.finish(data.draw(st.integers(0, len(self.store.loads) - 1)), is_hit=is_hit)

    @rule(share_first=st.booleans())
    def collect(self, *, share_first: bool) -> None:
        for index, loaded in self.ownership.arrivals(self.now_s):
            assert index not in self.begun, "bytes taken for a block that is computed"
            assert index not in self.ready, "a block became ready twice"
            assert bytes(loaded.data) == bytes([index]) * BLOCK_BYTES
            self.ownership.make_ready(index, DEVICE if share_first else loaded.tier)
            self.ready.add(index)
            loaded.release()

    @rule(num=st.integers(1, 3))
    def compute(self, num: int) -> None:
        """A step computes what is computing's, from the position on."""
        first = self.position()
        end = first
        while end < min(first + num, NUM_BLOCKS) and self.ownership.owner(end) is Owner.COMPUTE:
            end += 1
        self.begin_computing(first, end)

    def begin_computing(self, first: int, end: int) -> None:
        self.ownership.begin_computing(first, end)
        self.begun |= set(range(first, end))

    @rule(seconds=st.sampled_from([0.01, 0.3, 2.0, DEADLINE_S + 0.1]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(event=st.sampled_from([*["nothing"] * 12, *EVENTS]), index=blocks)
    def something_rare(self, event: str, index: int) -> None:
        if event == "shared" and index not in self.begun | self.ready:  # another request has published it
            self.ownership.make_ready(index, DEVICE)
            self.ready.add(index)
        elif event == "computed" and index not in self.ready:  # whoever was to bring it
            self.begin_computing(index, index + 1)
        elif event == "lease over" and self.hits:
            self.hits[-1].release()
        elif event == "store closed":
            self.store.is_closed = True
        elif event == "closed":
            self.close()

    def close(self) -> None:
        self.ownership.close()
        self.is_closed = True

    @invariant()
    def each_block_has_one_owner(self) -> None:
        for index in range(NUM_BLOCKS):
            owner = self.ownership.owner(index)
            assert (owner is Owner.READY) == (index in self.ready)
            assert (self.ownership.tiers[index] == READY) == (index in self.ready)
            if index in self.begun:
                assert owner is Owner.COMPUTE

    @invariant()
    def tickets_are_settled_once(self) -> None:
        assert all(len(watched.ends) <= 1 for watched in self.store.tickets)
        open_ = [watched.index for watched in self.store.tickets if not watched.ends]
        assert len(open_) == len(set(open_)), "two loads for one block"
        assert set(open_) == self.ownership.in_flight
        assert not self.ownership.in_flight & (self.begun | self.ready)

    @invariant()
    def whoever_waits_for_a_load_will_hear_of_it(self) -> None:
        awaited = {index for index in range(NUM_BLOCKS) if self.ownership.owner(index) is Owner.LOAD}
        num_unasked = len(awaited - self.ownership.in_flight)
        assert sum(self.ownership.num_wanted.values()) == num_unasked
        assert self.ownership.num_loading >= num_unasked + len(self.ownership.in_flight)
        assert bool(self.ownership.in_flight) == (self.ownership.next_deadline_s is not None)

    @invariant()
    def lines_carry_what_is_on_its_way(self) -> None:
        on_way = sum(line.bytes_on_way for line in self.costs._lines.values())
        assert on_way == len(self.ownership.in_flight) * BLOCK_BYTES

    @invariant()
    def at_most_the_last_lease_is_out(self) -> None:
        assert not any(hit.is_leased for hit in self.hits[:-1])
        assert not (self.is_closed and any(hit.is_leased for hit in self.hits))
        assert not (self.is_closed and self.ownership.num_loading)

    def teardown(self) -> None:
        self.close()
        self.at_most_the_last_lease_is_out()
        assert all(len(watched.ends) == 1 for watched in self.store.tickets)
        for number in range(len(self.store.loads)):
            self.store.finish(number, is_hit=True)
        assert self.store.num_given_back == self.store.num_lent


Takeover.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
test_blocks_that_change_hands_have_one_owner_at_any_time = Takeover.TestCase
