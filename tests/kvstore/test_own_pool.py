"""A client's pool and what its server knows of it, in whatever order things happen."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvstore.remote.own_pool import OwnPool

KEYS = [bytes([number]) * 16 for number in range(4)]


class Server:
    """What a server does with what it is told; it may be lost, and then knows nothing."""

    def __init__(self) -> None:
        self.epoch = 1
        self.held: set[str] = set()
        self.over: set[str] = set()
        self.is_there = True

    def exchange(self, said: dict[str, Any]) -> Any:
        if not self.is_there:
            return None
        if said["epoch"] == self.epoch:
            for key in said["removed"]:
                self.held.discard(key)
                self.over.discard(key)
            self.held |= {key for key, _, _ in said["added"]}
        return {"epoch": self.epoch, "over": sorted(self.over & self.held), "quarantined": []}

    def lose(self) -> None:
        self.epoch += 1
        self.held, self.over = set(), set()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "over", "exchange", "lose", "away", "back"]), st.integers(0, 3)
    ),
    max_size=40,
)


@given(STEPS)
@example([("add", 0), ("add", 1), ("exchange", 0), ("exchange", 0), ("remove", 0), ("remove", 1), ("add", 1)])
@settings(deadline=None)
def test_after_an_exchange_both_know_the_same(steps: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as few:
        few.setattr("kvstore.remote.own_pool._MOST_AT_ONCE", 1)
        run(steps)


def run(steps: list[tuple[str, int]]) -> None:
    """Do what the steps say to a pool, and compare in the end."""
    server = Server()
    pool, ours = OwnPool(server.exchange), set[bytes]()
    for step, number in steps:
        key = KEYS[number]
        if step == "add" and key not in ours:
            pool.add(key, b"", b"")
            ours.add(key)
        elif step == "remove":
            pool.remove(key)
            ours.discard(key)
        elif step == "over" and key.hex() in server.held:
            server.over.add(key.hex())
        elif step == "lose":
            server.lose()
        elif step in {"away", "back"}:
            server.is_there = step == "back"
        else:
            pool.exchange()
        assert set(pool.over()) <= ours
    server.is_there = True
    pool.exchange()
    assert server.held == {key.hex() for key in ours}
    assert {key.hex() for key in pool.over()} == server.over & server.held
    pool.stop()


def test_a_block_that_was_dropped_and_computed_again_is_not_over() -> None:
    server = Server()
    pool = OwnPool(server.exchange)
    pool.add(KEYS[0], b"", b"")
    pool.exchange()
    server.over.add(KEYS[0].hex())
    pool.exchange()
    assert pool.over() == pool.ended(KEYS) == [KEYS[0]]
    pool.remove(KEYS[0])
    pool.add(KEYS[0], b"", b"")
    assert pool.ended(KEYS) == []
    pool.exchange()
    assert pool.ended(KEYS) == []
    pool.stop()


def test_servers_that_take_turns_are_not_told_for_ever() -> None:
    servers, num_told = [Server(), Server()], 0
    servers[1].epoch = 100

    def exchange(said: dict[str, Any]) -> Any:
        nonlocal num_told
        num_told += 1
        return servers[num_told % 2].exchange(said)

    pool = OwnPool(exchange)
    pool.add(KEYS[0], b"", b"")
    pool.stop()  # what it does by itself
    for _ in range(3):
        pool.exchange()
    assert num_told == 6
