"""Small made-up traffic of agents: sessions that share a beginning, go on turn by turn, and end."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from kvstore.hints import Hint
from kvstore.seams import EvictionPolicy, Hearing
from policies.simulated_tier import SimulatedTier

_NUM_BEGINNINGS = 3
_BEGINNING_BLOCKS = 10
_MOST_TURNS = 12

SAID_TO_END = Hint(ends_session=True)


class Turn(NamedTuple):
    """One prompt of a session; ``pause_s`` is how long until the next one, ``None``: it is the last."""

    keys: tuple[bytes, ...]
    at_s: float
    pause_s: float | None


Tell = Callable[[Turn], Hint | None]


def agents(num_sessions: int = 400, seed: int = 1) -> list[Turn]:
    """Return the turns of sessions that begin one after the other, in order of time."""
    rng = Random(seed)
    turns, begun = list[Turn](), list[tuple[float, int, tuple[bytes, ...], int]]()
    for number in range(num_sessions):
        beginning = rng.randrange(_NUM_BEGINNINGS)
        keys = tuple(b"%d beginning %d" % (beginning, place) for place in range(_BEGINNING_BLOCKS))
        heappush(begun, (number * 10 + rng.random(), number, keys, rng.randint(1, _MOST_TURNS)))
    while begun:
        at_s, number, keys, num_left = heappop(begun)
        keys += tuple(b"%d session %d" % (number, len(keys) + more) for more in range(rng.randint(1, 8)))
        pause_s = rng.expovariate(1 / 20) if num_left > 1 else None
        turns.append(Turn(keys, at_s, pause_s))
        if pause_s is not None:
            heappush(begun, (at_s + pause_s, number, keys, num_left - 1))
    return turns


def hit_ratio(policy: EvictionPolicy, turns: list[Turn], capacity_blocks: int, tell: Tell) -> float:
    """Return the share of all blocks that were hit, where ``tell`` says something after each turn."""
    tier = SimulatedTier(policy, capacity_blocks)
    num_hit = sum(tier.serve(turn.keys, turn.at_s * 1000, hint=tell(turn)) for turn in turns)
    tier.check()
    return num_hit / sum(len(turn.keys) for turn in turns)


def the_truth(turn: Turn) -> Hint:
    """Say when a session ends, and how long it pauses otherwise."""
    return Hint(ends_session=turn.pause_s is None, pause_s=turn.pause_s)


def convince(policy: EvictionPolicy, hint: Hint = SAID_TO_END) -> None:
    """Let ``hint`` come true again and again while all other blocks come back; nothing is left behind."""
    assert isinstance(policy, Hearing)
    for number in range(40):
        told = b"told %d" % number
        policy.insert(told, b"", 0.0)
        policy.hear([told], hint, 0.0)
        for other in (b"other", b"another") * 4:
            policy.insert(other, b"", 0.0)
            policy.remove(other)
        policy.remove(told)
