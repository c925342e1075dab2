"""A policy's life as hypothesis invents it; needs hypothesis beside pytest.

::

    from kvstore.conformance.eviction_machine import machine_of

    TestMostRecentlyUsed = machine_of(MostRecentlyUsed).TestCase
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvstore.conformance.eviction import key
from kvstore.hints import Hint
from kvstore.seams import EvictionPolicy, Hearing

_NUMBERS = st.integers(1, 40)
_STOPS = st.none() | st.sampled_from(["stop", "length"])


class EvictionMachine(RuleBasedStateMachine):
    """Blocks come, are used, held, hinted at and removed in any order; after each step the contract holds."""

    make_policy: Callable[[], EvictionPolicy]

    def __init__(self) -> None:
        super().__init__()
        self.policy = type(self).make_policy()
        self.parents: dict[bytes, bytes] = {}
        self.held: set[bytes] = set()
        self.now_s = 0.0

    @rule(number=_NUMBERS, above=st.integers(0, 39))
    def insert(self, number: int, above: int) -> None:
        block, parent = key(number), key(above) if 0 < above < number else b""
        if block not in self.parents:
            self.policy.insert(block, parent, self.now_s)
            self.parents[block] = parent

    @rule(first=_NUMBERS, length=st.integers(2, 12))
    def insert_chain(self, first: int, length: int) -> None:
        for number in range(first, min(40, first + length)):
            self.insert(number, number - 1 if number > first else 0)

    @rule(number=_NUMBERS)
    def touch(self, number: int) -> None:
        self.policy.touch(key(number), self.now_s)

    @rule(number=_NUMBERS, ends=st.booleans(), pause_s=st.none() | st.floats(0, 1e9), stop=_STOPS)
    def hint(self, number: int, ends: bool, pause_s: float | None, stop: str | None) -> None:
        if not isinstance(self.policy, Hearing):
            return
        keys = [key(number)]
        while above := self.parents.get(keys[0]):
            keys.insert(0, above)
        self.policy.hear(keys, Hint(ends, pause_s, stop), self.now_s)

    @rule(number=_NUMBERS)
    def remove(self, number: int) -> None:
        self.policy.remove(key(number))
        self.parents.pop(key(number), None)

    @rule(num=st.integers(1, 10))
    def evict(self, num: int) -> None:
        for victim in list(islice(self.policy.victims(self.held.__contains__), num)):
            self.policy.remove(victim)
            del self.parents[victim]

    @rule(number=_NUMBERS)
    def hold_or_release(self, number: int) -> None:
        self.held ^= {key(number)}

    @rule(seconds=st.floats(0, 1e6))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def it_holds_what_was_inserted(self) -> None:
        assert len(self.policy) == len(self.parents)
        assert all(block in self.policy for block in self.parents)
        self.policy.check()

    @invariant()
    def all_that_may_go_go_once_and_children_first(self) -> None:
        victims = list(self.policy.victims(self.held.__contains__))
        assert victims == list(self.policy.victims(self.held.__contains__))
        place = {block: number for number, block in enumerate(victims)}
        assert len(place) == len(victims)
        assert place.keys() == self.parents.keys() - self._held_or_above()
        assert all(place[block] < place[above] for block, above in self.parents.items() if above in place)

    def _held_or_above(self) -> set[bytes]:
        kept: set[bytes] = set()
        for block in self.held & self.parents.keys():
            above = block
            while above in self.parents:
                kept.add(above)
                above = self.parents[above]
        return kept


def machine_of(policy: Callable[[], EvictionPolicy]) -> type[EvictionMachine]:
    """Return the machine for policies that ``policy`` makes; its ``TestCase`` is for pytest to collect."""
    return type(f"{policy.__name__}Machine", (EvictionMachine,), {"make_policy": staticmethod(policy)})
