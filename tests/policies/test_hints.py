"""What policies make of hints, true ones and lies."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from kvstore.conformance.eviction import is_free, key
from kvstore.conformance.eviction_machine import EvictionMachine
from kvstore.errors import ConfigError
from kvstore.hints import Hint
from kvstore.registry import Kind
from kvstore.seams import EvictionPolicy
from policies.belief import claim_of
from policies.builtin import BUILTIN
from policies.leaves import Block, LeafOrder
from tests.policies.agents import SAID_TO_END, Tell, Turn, agents, convince, hit_ratio, the_truth

POLICIES: dict[str, Callable[[], LeafOrder[Block]]] = {
    name: factory for kind, name, factory in BUILTIN if kind is Kind.EVICTION
}
CAPACITY_BLOCKS = 240


def convinced(name: str) -> LeafOrder[Block]:
    policy = POLICIES[name]()
    convince(policy)
    return policy


def chain_of(policy: EvictionPolicy, first: int, num: int, parent: bytes = b"") -> list[bytes]:
    """Insert ``num`` blocks, one behind the other, and return their keys."""
    keys = [key(number) for number in range(first, first + num)]
    for block in keys:
        policy.insert(block, parent, 0.0)
        parent = block
    return keys


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> LeafOrder[Block]:
    return convinced(request.param)


def test_blocks_of_an_ended_session_go_first(policy: LeafOrder[Block]) -> None:
    others = chain_of(policy, 1, 3)
    ended = chain_of(policy, 11, 4)
    policy.hear(ended, SAID_TO_END, 0.0)
    assert list(policy.victims(is_free)) == [*reversed(ended), *reversed(others)]
    policy.check()


def test_who_ended_first_goes_first(policy: LeafOrder[Block]) -> None:
    first, second = chain_of(policy, 1, 2), chain_of(policy, 11, 2)
    policy.hear(second, SAID_TO_END, 0.0)
    policy.hear(first, SAID_TO_END, 1.0)
    assert list(policy.victims(is_free)) == [*reversed(second), *reversed(first)]


def test_what_others_share_is_left_to_the_policy(policy: LeafOrder[Block]) -> None:
    shared = chain_of(policy, 1, 2)
    other = chain_of(policy, 11, 2, parent=shared[-1])
    ended = chain_of(policy, 21, 3, parent=shared[-1])
    policy.hear([*shared, *ended], SAID_TO_END, 0.0)
    assert list(policy.victims(is_free)) == [*reversed(ended), *reversed(other), *reversed(shared)]


@pytest.mark.parametrize("name", POLICIES)
def test_a_block_that_is_used_again_is_left_to_the_policy(name: str) -> None:
    told, untold, ended = convinced(name), convinced(name), [key(number) for number in range(11, 15)]
    for policy in (told, untold):
        chain_of(policy, 1, 1)
        chain_of(policy, 11, 4)
        if policy is told:
            policy.hear(ended, SAID_TO_END, 0.0)
        policy.touch(ended[1], 1.0)
    told.check()
    assert list(told.victims(is_free))[:2] == [ended[3], ended[2]]
    for policy in (told, untold):
        policy.remove(ended[3])
        policy.remove(ended[2])
    assert list(told.victims(is_free)) == list(untold.victims(is_free))


def test_a_block_that_another_follows_is_left_to_the_policy(policy: LeafOrder[Block]) -> None:
    ended = chain_of(policy, 11, 2)
    policy.hear(ended, SAID_TO_END, 0.0)
    policy.insert(key(1), ended[-1], 1.0)
    policy.check()
    assert list(policy.victims(is_free)) == [key(1), *reversed(ended)]


def test_held_blocks_and_those_above_stay_though_their_session_ended(policy: LeafOrder[Block]) -> None:
    ended, other = chain_of(policy, 11, 4), chain_of(policy, 1, 1)
    policy.hear(ended, SAID_TO_END, 0.0)
    assert list(policy.victims(lambda block: block == ended[2])) == [ended[3], *other]


def test_blocks_in_the_middle_may_be_absent(policy: LeafOrder[Block]) -> None:
    ended, other = chain_of(policy, 11, 5), chain_of(policy, 1, 1)
    policy.remove(ended[2])
    policy.hear(ended, SAID_TO_END, 0.0)
    policy.remove(ended[3])
    policy.check()
    assert list(policy.victims(is_free)) == [ended[4], ended[1], ended[0], *other]


@pytest.mark.parametrize("name", POLICIES)
def test_nothing_is_believed_at_first(name: str) -> None:
    told, untold = POLICIES[name](), POLICIES[name]()
    for policy in (told, untold):
        chain_of(policy, 1, 3)
        chain_of(policy, 11, 3)
    told.hear([key(11), key(12), key(13)], SAID_TO_END, 0.0)
    assert list(told.victims(is_free)) == list(untold.victims(is_free))


@pytest.mark.parametrize("name", POLICIES)
def test_belief_ends_with_the_lies_and_what_was_to_go_first_is_kept(name: str) -> None:
    told, untold = convinced(name), convinced(name)
    for policy in (told, untold):
        chain_of(policy, 1, 1)
        ended = chain_of(policy, 11, 2)
        if policy is told:
            policy.hear(ended, SAID_TO_END, 0.0)
            assert next(policy.victims(is_free)) == ended[-1]
        for number in range(100, 2600):
            lie = chain_of(policy, number, 1)
            if policy is told:
                policy.hear(lie, SAID_TO_END, 0.0)
            policy.touch(lie[0], 0.0)
            policy.remove(lie[0])
        policy.check()
    assert len(told) == 3
    assert list(told.victims(is_free)) == list(untold.victims(is_free))


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_kept_of_hints_is_bounded(name: str) -> None:
    policy = convinced(name)
    for number in range(20_000):
        block = key(number)
        policy.insert(block, b"", float(number))
        policy.hear([block], Hint(number % 2 == 0, float(number), f"stop {number % 1000}"), float(number))
        if len(policy) > 100:
            policy.remove(next(policy.victims(is_free)))
    assert policy._farewells is not None
    belief = vars(policy._farewells._belief).values()
    assert max(len(part) for part in belief if hasattr(part, "__len__")) <= 2048
    assert len(policy._farewells._chain_of) <= len(policy)


def test_pauses_about_as_long_are_the_same_claim() -> None:
    assert claim_of(Hint(pause_s=20)) == claim_of(Hint(pause_s=60)) != claim_of(Hint(pause_s=65))
    assert claim_of(Hint(pause_s=0)) != claim_of(Hint())
    assert claim_of(Hint(pause_s=1e300)) == claim_of(Hint(pause_s=1e9))


@pytest.mark.parametrize("pause_s", [-1, float("inf"), float("nan")])
def test_a_pause_that_is_none_is_refused(pause_s: float) -> None:
    with pytest.raises(ConfigError, match="pause_s"):
        Hint(pause_s=pause_s)


def silence(_: Turn) -> None:
    """Say nothing."""


def random_end(turn: Turn) -> Hint:
    return Hint(ends_session=Random(turn.at_s).random() < 0.5)


LIES: dict[str, Tell] = {
    "every session ends": lambda _: Hint(ends_session=True),
    "those that go on end": lambda turn: None if turn.pause_s is None else Hint(ends_session=True),
    "half of them end": random_end,
    "it goes on at once": lambda _: Hint(pause_s=0),
    "it goes on in hours": lambda _: Hint(pause_s=7200),
    "soon means long": lambda turn: Hint(pause_s=9e3 if (turn.pause_s or 99) < 20 else 0),
    "they end but for those that do": lambda turn: Hint(ends_session=turn.pause_s is not None),
}


@pytest.fixture(scope="module")
def turns() -> list[Turn]:
    return agents()


@pytest.fixture(scope="module")
def untold(turns: list[Turn]) -> dict[str, float]:
    """Return what each policy hits without hints."""
    return {name: hit_ratio(make(), turns, CAPACITY_BLOCKS, silence) for name, make in POLICIES.items()}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("name", POLICIES)
def test_a_lie_costs_no_more_than_silence(
    turns: list[Turn], untold: dict[str, float], name: str, lie: str
) -> None:
    assert hit_ratio(POLICIES[name](), turns, CAPACITY_BLOCKS, LIES[lie]) >= untold[name] - 0.001


@pytest.mark.parametrize("name", POLICIES)
def test_the_truth_is_worth_something(turns: list[Turn], untold: dict[str, float], name: str) -> None:
    assert hit_ratio(POLICIES[name](), turns, CAPACITY_BLOCKS, the_truth) > untold[name] + 0.03


@pytest.mark.parametrize("name", POLICIES)
def test_who_begins_to_lie_costs_no_more_than_silence(
    turns: list[Turn], untold: dict[str, float], name: str
) -> None:
    middle_s = turns[len(turns) // 2].at_s

    def turncoat(turn: Turn) -> Hint:
        return the_truth(turn) if turn.at_s < middle_s else Hint(ends_session=True)

    assert hit_ratio(POLICIES[name](), turns, CAPACITY_BLOCKS, turncoat) >= untold[name] - 0.001


class BelievingMachine(EvictionMachine):
    """A life in which hints are believed from the start."""

    def __init__(self) -> None:
        super().__init__()
        convince(self.policy)


def believing(name: str) -> type[BelievingMachine]:
    return type(f"Believing{name}", (BelievingMachine,), {"make_policy": staticmethod(POLICIES[name])})


TestBelievingLRU = believing("lru").TestCase
TestBelievingLFU = believing("lfu").TestCase
TestBelievingS3FIFO = believing("s3fifo").TestCase
TestBelievingARC = believing("arc").TestCase
TestBelievingReuse = believing("reuse").TestCase
