"""Timing work that a device does after it was told to."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from benchmarks.on_gpu.served import Bench

_ROUNDS = 5
Work = Callable[[], object]


def seconds(bench: Bench, work: Work, repeats: int = 1) -> float:
    """Return how long ``work`` takes, begun ``repeats`` times before the device is waited for, each."""
    bench.wait()
    began_s = time.perf_counter()
    for _ in range(repeats):
        work()
    bench.wait()
    return (time.perf_counter() - began_s) / repeats


def medians(bench: Bench, sides: dict[str, Work], repeats: int = 1) -> dict[str, float]:
    """Return each side's median seconds over a few rounds, in which all take turns; one more warms up."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(_ROUNDS + 1):
        for name, work in sides.items():
            spent_s = seconds(bench, work, repeats)
            if number:
                taken[name].append(spent_s)
    return {name: median(times) for name, times in taken.items()}
