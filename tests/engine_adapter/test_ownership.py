from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from threading import Event as Flag

import pytest

from backends.faulty import Action, Fault, Faulty, Operation, fail, miss, stall
from backends.host import HostBackend
from engine_adapter.engine import costs
from engine_adapter.engine.costs import CostBook
from engine_adapter.engine.ownership import Loads, Owner, Ownership
from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.keys import chain_keys
from kvstore.namespace import Namespace
from kvstore.store import TieredStore
from policies.planning import Choice
from tests.engine_adapter.rig import tier
from tests.eventually import eventually

NAMESPACE = Namespace("w", "{}", "float32", "float32", 4)
KEYS = chain_keys(NAMESPACE.digest, range(24), 4)
NUM_BYTES = 4096


class Loader:
    """Six blocks in a store, all owned by loads."""

    def __init__(self, script: Sequence[Fault]) -> None:
        self.backend = Faulty(HostBackend(Arena(2**20)), script)
        self.store = TieredStore([tier(self.backend, "disk")], Arena(2**20))
        for index, key in enumerate(KEYS):
            parent = KEYS[index - 1] if index else b""
            assert self.store.put(NAMESPACE, key, parent, memoryview(bytes([index]) * NUM_BYTES))
        assert self.store.flush(5)
        self.woken = Flag()
        loads = Loads(self.store, CostBook(NUM_BYTES), Clock(), 10.0, self.woken.set)
        self.ownership = Ownership(6, loads)
        self.hit = self.store.lookup(KEYS)
        self.ownership.offer(self.hit)
        self.ownership.follow([Choice.LOAD] * 6, (), 0)

    @property
    def owners(self) -> str:
        """The owners' initials, in order."""
        return "".join(self.ownership.owner(index).name[0] for index in range(6))

    def collect(self, now_s: float | None = None) -> list[int]:
        """Take what has arrived, and return it."""
        arrived = []
        self.ownership.start()
        for index, loaded in self.ownership.arrivals(time.monotonic() if now_s is None else now_s):
            assert bytes(loaded.data) == bytes([index]) * NUM_BYTES
            self.ownership.make_ready(index, loaded.tier)
            loaded.release()
            arrived.append(index)
        return arrived

    def collect_all(self) -> list[int]:
        arrived = []
        ends_at_s = time.monotonic() + 5
        while self.ownership.num_loading and time.monotonic() < ends_at_s:
            arrived += self.collect()
        return sorted(arrived)

    def is_at_rest(self) -> bool:
        return self.store.num_holds == 0


MakeLoader = Callable[..., Loader]


@pytest.fixture
def make_loader(gate: Flag, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeLoader]:
    monkeypatch.setattr(costs, "_LEAST_WINDOW_BLOCKS", 8)
    loaders: list[Loader] = []

    def make(*script: Fault) -> Loader:
        loaders.append(Loader(script))
        return loaders[-1]

    yield make
    gate.set()
    for loader in loaders:
        loader.ownership.close()
        eventually(loader.is_at_rest)
        loader.store.check()
        loader.store.close(5)


@pytest.fixture
def gate() -> Flag:
    return Flag()


def test_all_blocks_begin_with_computing() -> None:
    ownership = Ownership(2)

    assert [ownership.owner(index) for index in range(3)] == [Owner.COMPUTE] * 3
    assert (ownership.num_loading, ownership.next_deadline_s) == (0, None)


def test_loads_make_blocks_ready_and_the_lease_lasts_until_it_is_closed(make_loader: MakeLoader) -> None:
    loader = make_loader()
    assert loader.owners == "LLLLLL"

    assert loader.collect_all() == [0, 1, 2, 3, 4, 5]

    assert loader.owners == "RRRRRR"
    assert {loader.ownership.tier(index) for index in range(6)} == {"disk"}
    assert loader.woken.is_set()
    assert loader.hit.is_leased  # what is still computed may yet be loaded by another plan
    loader.ownership.close()
    assert not loader.hit.is_leased


def test_a_tier_is_asked_for_the_last_blocks_first_and_only_while_it_has_room(
    make_loader: MakeLoader, gate: Flag, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "_LEAST_WINDOW_BLOCKS", 2)
    loader = make_loader(Fault(Operation.GET, stall(gate.wait)))
    loader.collect()
    loader.collect()

    assert loader.ownership.in_flight == {4, 5}
    assert (loader.ownership.num_loading, loader.ownership.num_wanted["disk"]) == (6, 4)
    gate.set()
    assert loader.collect_all() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("refusal", [miss, fail(OSError("gone"))])
def test_a_load_that_misses_goes_over_to_computing_alone(make_loader: MakeLoader, refusal: Action) -> None:
    loader = make_loader(Fault(Operation.GET, refusal, nth=3))

    loader.collect_all()

    assert sorted(loader.owners) == list("CRRRRR")
    assert loader.ownership.num_taken_over == 1


def test_a_late_load_takes_those_not_started_with_it(
    make_loader: MakeLoader, gate: Flag, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "_LEAST_WINDOW_BLOCKS", 2)
    loader = make_loader(Fault(Operation.GET, stall(gate.wait)))
    loader.collect()
    deadline_s = loader.ownership.next_deadline_s
    assert deadline_s is not None

    assert loader.collect(deadline_s - 0.001) == []
    assert loader.owners == "LLLLLL"
    assert loader.collect(deadline_s + 0.001) == []

    assert loader.owners == "CCCCCC"
    assert loader.ownership.num_taken_over == 6
    assert loader.ownership.num_loading == 0


def test_what_failed_is_not_offered_again(make_loader: MakeLoader) -> None:
    loader = make_loader(Fault(Operation.GET, miss, nth=3))
    loader.collect_all()
    failed = loader.owners.index("C")

    loader.ownership.offer(loader.store.lookup(KEYS))
    loader.ownership.follow([Choice.LOAD] * 6, (), 0)

    assert loader.owners[failed] == "C"
    assert not loader.ownership.is_open(0)


def test_a_block_that_is_ready_otherwise_discards_its_load(make_loader: MakeLoader, gate: Flag) -> None:
    loader = make_loader(Fault(Operation.GET, stall(gate.wait)))
    loader.collect()

    loader.ownership.make_ready(0, "device")
    loader.ownership.make_ready(5, "device")
    gate.set()

    assert loader.collect_all() == [1, 2, 3, 4]
    assert loader.owners == "RRRRRR"
    assert (loader.ownership.tier(0), loader.ownership.tier(1)) == ("device", "disk")


def test_a_plan_that_turns_to_computing_leaves_loads_on_their_way_until_computing_comes(
    make_loader: MakeLoader, gate: Flag
) -> None:
    loader = make_loader(Fault(Operation.GET, stall(gate.wait)))
    loader.collect()

    loader.ownership.follow([Choice.COMPUTE] * 6, (), 0)
    assert loader.owners == "CCCCCC"
    assert loader.ownership.in_flight == {0, 1, 2, 3, 4, 5}
    loader.ownership.begin_computing(0, 2)
    gate.set()

    assert loader.collect_all() == [2, 3, 4, 5]
    assert loader.owners == "CCRRRR"


def test_a_probe_is_asked_for_beside_computing_and_used_when_it_comes_in_time(
    make_loader: MakeLoader,
) -> None:
    loader = make_loader()
    loader.ownership.follow([Choice.COMPUTE] * 6, (4, 5), 0)
    assert (loader.owners, loader.ownership.num_loading) == ("CCCCCC", 2)

    assert loader.collect_all() == [4, 5]
    assert loader.owners == "CCCCRR"


@pytest.mark.parametrize(
    "probes", [(0, 3), (5, 5), (4,), (99,), (-1,)], ids=["computed", "twice", "wanted", "beyond", "before"]
)
def test_probes_that_make_no_sense_are_not_asked_for(
    make_loader: MakeLoader, probes: tuple[int, ...]
) -> None:
    """A policy may come from anywhere: none may have a block written that computing has filled."""
    loader = make_loader()
    loader.ownership.begin_computing(0, 2)
    loader.ownership.make_ready(3, "device")

    loader.ownership.follow([Choice.COMPUTE] * 4 + [Choice.LOAD, Choice.COMPUTE], probes, 2)

    assert loader.collect_all() == sorted({4} | ({5} & set(probes)))
    assert loader.backend.num_calls[Operation.GET] == 1 + (5 in probes)


def test_a_lookup_that_finds_less_leaves_the_rest_to_computing(make_loader: MakeLoader) -> None:
    loader = make_loader()
    loader.store.quarantine(KEYS[4])

    loader.ownership.offer(loader.store.lookup(KEYS))

    assert loader.owners == "LLLLCC"
    assert loader.collect_all() == [0, 1, 2, 3]
    assert loader.ownership.num_loading == 0


def test_a_lookup_leaves_loads_on_their_way_alone(make_loader: MakeLoader, gate: Flag) -> None:
    loader = make_loader(Fault(Operation.GET, stall(gate.wait)))
    loader.collect()
    loader.store.quarantine(KEYS[4])

    loader.ownership.offer(loader.store.lookup(KEYS))
    assert loader.owners == "LLLLLL"
    assert loader.ownership.tiers == ["disk"] * 6
    gate.set()

    assert loader.collect_all() == [0, 1, 2, 3]
    assert loader.owners == "RRRRCC"


def test_closing_gives_up_loads_and_lease(make_loader: MakeLoader, gate: Flag) -> None:
    loader = make_loader(Fault(Operation.GET, stall(gate.wait)))
    loader.collect()

    loader.ownership.close()
    loader.ownership.close()

    assert loader.owners == "CCCCCC"
    assert loader.ownership.num_taken_over == 0
    assert not loader.hit.is_leased


def test_a_lease_that_is_over_loads_nothing(make_loader: MakeLoader) -> None:
    loader = make_loader()
    loader.hit.release()

    assert loader.collect() == []
    assert loader.owners == "CCCCCC"


def test_a_closed_store_loads_nothing(make_loader: MakeLoader) -> None:
    loader = make_loader()
    loader.store.close(1)

    assert loader.collect() == []
    assert loader.owners == "CCCCCC"
