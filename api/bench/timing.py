"""Timing two sides against each other on a noisy machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

Work = Callable[[], object]


def seconds(work: Work) -> float:
    """Return how long ``work`` takes, by the wall clock."""
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def medians(sides: dict[str, Work], rounds: int) -> dict[str, float]:
    """Return each side's median seconds over ``rounds``, all sides taking turns in every round.

    One round before the first is not counted: it pays for what is done once.
    """
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        order = list(sides) if number % 2 else list(reversed(sides))
        for name in order:
            spent_s = seconds(sides[name])
            if number:
                taken[name].append(spent_s)
    return {name: median(times) for name, times in taken.items()}
