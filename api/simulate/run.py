"""Which cells are asked for, and their replay with a progress bar."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from api.simulate.hints import Hints, hints_of
from api.simulate.optimum import Optimum, next_uses
from api.simulate.replay import Cache, Cell, replay
from api.simulate.tier import TracedTier
from api.simulate.trace import Trace
from api.simulate.worth import Prices
from kvstore.errors import ConfigError
from kvstore.registry import Kind, Registry
from kvstore.retention import MAX_LIFETIME_S

OPTIMUM = "OPT"
LOWER_BOUND = "lru"

_USUAL_PERCENTS = (1, 2, 5, 10, 20)
_MOST_CAPACITY = 10**9
_MOST_CELLS = 1000

MakeCache = Callable[[int], Cache]
"""Makes an empty cache of that many blocks."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be simulated."""

    policies: tuple[str, ...]
    capacities: tuple[int, ...]
    """In blocks; empty: 1, 2, 5, 10 and 20 % of the trace's distinct blocks."""
    ttl_s: float | None = None
    hints: Hints = Hints.NONE


def question(
    policies: str,
    capacities: str | None,
    ttl_s: float | None,
    registry: Registry,
    *,
    is_drawn: bool,
    hints: Hints = Hints.NONE,
) -> Question:
    """Return what the words of the command line ask for; a drawing has its two bounds as well.

    Raises ``ConfigError`` for what cannot be simulated, ``PluginError`` for a policy that is not known.
    """
    names = _words("policy", policies)
    if is_drawn:
        names = [LOWER_BOUND, *names, OPTIMUM]
    for name in set(names) - {OPTIMUM}:
        registry.get(Kind.EVICTION, name)
    if ttl_s is not None and not 0.001 <= ttl_s <= MAX_LIFETIME_S:
        raise ConfigError("ttl", f"must lie between a millisecond and a century, not {ttl_s} s")
    sizes = [] if capacities is None else map(_capacity, _words("capacity_blocks", capacities))
    asked = Question(tuple(dict.fromkeys(names)), tuple(sorted(set(sizes))), ttl_s, hints)
    if len(asked.policies) * len(asked.capacities) > _MOST_CELLS:
        raise ConfigError("capacity_blocks", f"at most {_MOST_CELLS} cells are replayed at once")
    return asked


def usual_capacities(trace: Trace) -> tuple[int, ...]:
    """Return 1, 2, 5, 10 and 20 % of the trace's distinct blocks, each at least one block."""
    shares = (round(trace.num_blocks * percent / 100) for percent in _USUAL_PERCENTS)
    return tuple(sorted({max(1, share) for share in shares}))


def make_caches(asked: Question, trace: Trace, registry: Registry) -> dict[str, MakeCache]:
    """Return how the cache of each policy is made."""
    uses = functools.cache(lambda: next_uses(trace))
    hints = hints_of(trace, asked.hints)

    def maker(policy: str) -> MakeCache:
        if policy == OPTIMUM:
            return lambda size: Optimum(uses(), size)
        factory = registry.get(Kind.EVICTION, policy)
        return lambda size: TracedTier(trace, factory(), size, asked.ttl_s, hints)

    return {policy: maker(policy) for policy in asked.policies}


def run_cells(
    trace: Trace, makers: dict[str, MakeCache], capacities: Sequence[int], prices: Prices | None = None
) -> list[Cell]:
    """Replay every cell, policy after policy; shows progress on stderr."""
    cells = list[Cell]()
    with _progress() as progress:
        task = progress.add_task("", total=len(makers) * len(capacities) * len(trace.requests))
        for name, make in makers.items():
            for size in capacities:
                progress.update(task, description=f"{name}, {size:,} blocks")
                advance = functools.partial(progress.advance, task)
                cells.append(replay(trace, name, size, make(size), advance, prices))
    return cells


def _progress() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _words(setting: str, text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise ConfigError(setting, f"{text!r} is not a list of names or numbers with commas between them")
    return words


def _capacity(word: str) -> int:
    if not (word.isascii() and word.isdigit()) or len(word) > 10 or not 1 <= int(word) <= _MOST_CAPACITY:
        raise ConfigError("capacity_blocks", f"{word!r} is not a number of blocks from 1 to a billion")
    return int(word)
