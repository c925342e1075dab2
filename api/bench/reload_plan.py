"""What ``prefixd bench reload`` runs: its cells, its arms, how often and in which order. Pure functions.

Rates are multiples of break-even, at which loading a prompt takes as long as computing it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

NAMED_ARMS = ("measured", "always-load", "always-compute", "static", "timeout")
LEAST_REQUESTS = 200
"""Of the policy under test, pooled for the worst percentile of a full run."""

SLOWED_TIMES = 10
_STATIC_LEAST_TOKENS = 1024
_TIMEOUT_S = 0.5
_RUN_OVERHEAD_S = 0.15
_DEAR = 2.5
"""An arm that many times slower than computing is hopeless, and need not be run as often."""
_DEAR_EVERY = 3
_SHARE_STEP = 0.1
_PAPER_STEPS = 64
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 24
_BATCHES_PER_ROUND = 4


class Trouble(Enum):
    """What happens to the tier half way through the best split's loads."""

    NONE = "none"
    STALLS = "stalls"
    SLOWS = "slows"


@dataclass(frozen=True, slots=True)
class Cell:
    """One situation. ``rate`` is over break-even, ``None`` unthrottled."""

    prompt_tokens: int
    rate: float | None
    latency_s: float
    concurrency: int = 1
    trouble: Trouble = Trouble.NONE


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy under its name, or, with ``computed_share``, one that computes that share of the blocks."""

    name: str
    computed_share: float | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What was measured before planning: computing each prompt, and the unthrottled rate over break-even.

    Loads are given up after ``deadline_s``. Fixed splits are ``steps`` away from the one that is best on
    paper.
    """

    compute_s: Mapping[int, float]
    unthrottled: Mapping[int, float]
    deadline_s: float
    steps: tuple[int, ...] = (-1, 0, 1)


QUICK_CELLS = (
    Cell(512, 10.0, 0.02),
    Cell(512, 1.0, 0.02),
    Cell(512, 1.0, 0.02, trouble=Trouble.STALLS),
    Cell(512, 0.1, 0.02),
)
FULL_CELLS = (
    Cell(512, 0.1, 0.02),
    Cell(512, 1.0, 0.02),
    Cell(512, 1.0, 0.5),
    Cell(512, 10.0, 0.02),
    Cell(512, None, 0.0),
    Cell(2048, 1.0, 0.02),
    Cell(2048, 10.0, 0.0),
    Cell(2048, 10.0, 0.5),
    Cell(512, 1.0, 0.02, concurrency=8),
    Cell(512, 10.0, 0.02, concurrency=8),
    Cell(512, 1.0, 0.02, trouble=Trouble.STALLS),
    Cell(2048, 1.0, 0.02, trouble=Trouble.SLOWS),
)


def rate_of(cell: Cell, known: Known) -> float:
    """Return the cell's rate over break-even as a number."""
    return known.unthrottled[cell.prompt_tokens] if cell.rate is None else cell.rate


def best_share(cell: Cell, known: Known) -> float:
    """Return the share of the blocks to compute that is best on paper, trouble included."""
    shares = [step / _PAPER_STEPS for step in range(_PAPER_STEPS + 1)]
    return min(shares, key=lambda share: _split_s(cell, share, known))


def arms_of(cell: Cell, known: Known) -> list[Arm]:
    """Return the arms of a cell: the policies by name, and fixed splits around the best on paper."""
    best = best_share(cell, known)
    shares = sorted({round(best + step * _SHARE_STEP, 3) for step in known.steps})
    fixed = [Arm(f"computes {share:.1%}", share) for share in shares if 0 < share < 1]
    useful = [arm for arm in fixed if not is_dear(cell, arm, known)]
    return [*(Arm(name) for name in NAMED_ARMS), *useful]


def trouble_share(cell: Cell, known: Known) -> float:
    """Return the share of the prompt's blocks that arrive before the tier gets into trouble."""
    return (1 - best_share(replace(cell, trouble=Trouble.NONE), known)) / 2


def predicted_s(cell: Cell, arm: Arm, known: Known) -> float:
    """Return about how long a run takes: all prompts of the cell together."""
    compute_s = known.compute_s[cell.prompt_tokens]
    loads_all = _split_s(cell, 0.0, known)
    computes_all = _split_s(cell, 1.0, known)
    match arm.name:
        case "always-load":
            return loads_all
        case "always-compute":
            return computes_all
        case "static":
            return loads_all if cell.prompt_tokens >= _STATIC_LEAST_TOKENS else computes_all
        case "timeout":
            return min(loads_all, _TIMEOUT_S + compute_s * cell.concurrency)
    share = best_share(cell, known) if arm.computed_share is None else arm.computed_share
    return _split_s(cell, share, known)


def is_dear(cell: Cell, arm: Arm, known: Known) -> bool:
    """Say whether an arm is so slow that fewer runs tell enough."""
    is_tested = arm.name == "measured"
    return not is_tested and predicted_s(cell, arm, known) > _DEAR * _split_s(cell, 1.0, known)


def round_s(cell: Cell, known: Known) -> float:
    """Return about how long a round of a cell takes, on average over many."""
    arms = arms_of(cell, known)
    spent_s = [
        (predicted_s(cell, arm, known) + _RUN_OVERHEAD_S) / (_DEAR_EVERY if is_dear(cell, arm, known) else 1)
        for arm in arms
    ]
    warming_s = known.compute_s[cell.prompt_tokens] if cell.trouble is not Trouble.NONE else 0.0
    return sum(spent_s) + warming_s


def rounds_of(
    cells: Sequence[Cell],
    known: Known,
    budget_s: float,
    least_requests: int = 0,
    most_rounds: int = _MOST_ROUNDS,
) -> dict[Cell, int]:
    """Return how many rounds each cell gets: an even number, the most that fit in ``budget_s``.

    Batches count for each of their requests and get fewer. ``least_requests`` are made in all even if
    that takes longer.
    """
    best = _with_rounds(cells, _LEAST_ROUNDS)
    for rounds in range(_LEAST_ROUNDS, most_rounds + 1, 2):
        plan = _with_rounds(cells, rounds)
        fits = sum(num * round_s(cell, known) for cell, num in plan.items()) <= budget_s
        if fits or num_requests(best) < least_requests:
            best = plan
    return best


def num_requests(plan: Mapping[Cell, int]) -> int:
    """Return how many requests one arm makes in all cells."""
    return sum(cell.concurrency * rounds for cell, rounds in plan.items())


def runs_of(cell: Cell, known: Known, rounds: int, dice: random.Random) -> Iterator[tuple[int, Arm]]:
    """Yield (round from 1, arm): each odd round is shuffled, the even one after it is its reverse.

    So all arms come as early as late. Hopeless ones take part in every third such pair, or in the
    first round alone where there are few.
    """
    order: list[Arm] = []
    for number in range(1, rounds + 1):
        if number % 2:
            order = arms_of(cell, known)
            dice.shuffle(order)
        else:
            order = order[::-1]
        is_spared = (number - 1) // 2 % _DEAR_EVERY != 0 or (rounds <= _LEAST_ROUNDS and number > 1)
        yield from ((number, arm) for arm in order if not (is_spared and is_dear(cell, arm, known)))


def _with_rounds(cells: Sequence[Cell], rounds: int) -> dict[Cell, int]:
    batched = max(_LEAST_ROUNDS, 2 * round(rounds / _BATCHES_PER_ROUND / 2))
    return {cell: batched if cell.concurrency > 1 else rounds for cell in cells}


def _split_s(cell: Cell, share: float, known: Known) -> float:
    """Return how long it takes to compute the first ``share`` of each prompt and load the rest meanwhile."""
    compute_s = known.compute_s[cell.prompt_tokens] * cell.concurrency
    full_s, loaded = compute_s / rate_of(cell, known), 1 - share
    if not loaded:
        return compute_s
    early = loaded if cell.trouble is Trouble.NONE else min(loaded, trouble_share(cell, known))
    load_s = cell.latency_s + early * full_s
    late = loaded - early
    if late > 1e-9 and cell.trouble is Trouble.SLOWS:
        load_s += late * full_s * SLOWED_TIMES
    if late > 1e-9 and cell.trouble is Trouble.STALLS:
        load_s += known.deadline_s + late * compute_s
    return max(share * compute_s, load_s)
