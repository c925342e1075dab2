"""Shadows take a small share of a core, whatever comes, and hold nobody up."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from hashlib import blake2b
from itertools import count
from types import SimpleNamespace

import pytest

from engine_adapter.shadowing import Allowance, Shadowing
from kvstore.served import ServedPrompt
from policies.arc import LeafFirstARC
from policies.lru import LeafFirstLRU
from policies.shadows import ShadowTier
from tests.eventually import eventually

MAKERS = {"lru": LeafFirstLRU, "arc": LeafFirstARC}


def prompt(number: int, num_blocks: int = 50) -> ServedPrompt:
    keys = tuple(blake2b(f"{number} {at}".encode(), digest_size=16).digest() for at in range(num_blocks))
    return ServedPrompt(number, 16, keys, 16 * num_blocks)


def test_time_that_is_left_is_saved_up_to_a_bound() -> None:
    allowance = Allowance(0.05, now_s=0.0)
    allowance.take(0.3, now_s=2.0)
    assert allowance.wait_s() == 0.0
    allowance.take(0.2, now_s=2.0)
    assert allowance.wait_s() == pytest.approx((0.15 + 0.25) / 0.05)
    allowance.take(0.0, now_s=10_000.0)
    allowance.take(0.5, now_s=10_000.0)
    assert allowance.wait_s() == 0.0
    allowance.take(0.01, now_s=10_000.0)
    assert allowance.wait_s() > 0.0


def test_the_share_taken_lately_fades() -> None:
    allowance = Allowance(0.05, now_s=0.0)
    for second in range(600):
        allowance.take(0.03, now_s=float(second))
    assert allowance.busy(600.0) == pytest.approx(0.03, rel=0.05)
    assert allowance.busy(900.0) < 0.001


def test_in_the_long_run_no_more_than_its_share_is_taken() -> None:
    """Minutes of time that is made up: each request would take a fifth of the gap to the next."""
    allowance, now_s, taken_s = Allowance(0.05, now_s=0.0), 0.0, 0.0
    while now_s < 600.0:
        now_s += 0.1 + allowance.wait_s()
        allowance.take(0.02, now_s)
        taken_s += 0.02
    assert taken_s / now_s == pytest.approx(0.05, rel=0.05)


def test_a_real_thread_keeps_its_share() -> None:
    tier = ShadowTier(MAKERS, "lru", 100_000)
    taken: list[float] = []

    def taken_s() -> float:
        taken.append(time.thread_time())
        return taken[-1]

    shadowing = Shadowing({"host": tier}, most_of_a_core=0.02, taken_s=taken_s)
    began_s, number = time.monotonic(), 0
    rate = tier.rate
    while time.monotonic() - began_s < 3.0 or (tier.rate == rate and time.monotonic() - began_s < 30.0):
        shadowing(prompt(number % 100, 2000))
        number += 1
        threading.Event().wait(0.001)
    lasted_s = time.monotonic() - began_s
    told = shadowing.statistics()
    assert shadowing.close()
    # A quarter of a second is saved at the start, and one request may overdraw it.
    assert taken[-1] - taken[0] <= 0.02 * lasted_s + 0.25 + 0.2
    assert tier.rate < rate
    assert set(told.tiers["host"].hit_ratios) == {"lru", "arc"}


def test_who_waits_for_the_interpreter_has_it_between_any_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    tier, rests_s, ticks = ShadowTier(MAKERS, "lru", 40_000), list[float](), count()
    ticking = SimpleNamespace(sleep=rests_s.append, thread_time=lambda: next(ticks) / 100)  # 10 ms a step
    monkeypatch.setattr("engine_adapter.shadowing.time", ticking)
    seconds = count()
    shadowing = Shadowing({"host": tier, "disk": tier}, 1e-9, taken_s=lambda: float(next(seconds)))
    shadowing(prompt(0, 2000))
    eventually(lambda: len(rests_s) == 2 * 2 * len(MAKERS))  # served, and sampled anew
    assert rests_s == [pytest.approx(0.04)] * len(rests_s), "four times as long as it computed"
    assert shadowing.close()


def test_too_much_halves_the_sample_and_calm_doubles_it_again() -> None:
    tier, now_s, taken_s = ShadowTier(MAKERS, "lru", 40_000), 0.0, 0.0
    each_s = 1.0

    def taken() -> float:
        nonlocal taken_s
        taken_s += each_s / 2
        return taken_s

    shadowing = Shadowing({"host": tier}, 0.05, lambda: now_s, taken)
    waits: list[float] = []
    # Time is made up.
    shadowing._closing.wait = lambda timeout=None: not waits.append(timeout or 0.0)  # type: ignore[func-returns-value, method-assign]
    wanted = tier.rate
    shadowing._serve(prompt(0))
    assert tier.rate == wanted / 2
    # The request and the change took half a second each, and a quarter is to be saved again.
    assert waits == [pytest.approx((0.25 + 0.75) / 0.05)]
    shadowing._serve(prompt(1))
    assert tier.rate == wanted / 4
    each_s, now_s = 0.0, 599.0
    shadowing._serve(prompt(2))
    assert tier.rate == wanted / 4
    for at_s, rate in ((601.0, wanted / 2), (1100.0, wanted / 2), (1202.0, wanted), (1900.0, wanted)):
        now_s = at_s
        shadowing._serve(prompt(3))
        assert tier.rate == rate
    assert shadowing.close()


def test_the_sample_is_never_too_small_to_say_anything() -> None:
    tier = ShadowTier(MAKERS, "lru", 40_000, rate=0.002)
    assert not tier.can_halve
    shadowing = Shadowing({"host": tier}, 1e-9)
    shadowing(prompt(0))
    eventually(lambda: shadowing.statistics().core_share > 0)
    assert shadowing.close()
    assert tier.rate == 0.002


def test_only_what_reads_and_writes_the_cache_is_served() -> None:
    tier = ShadowTier(MAKERS, "lru", 100)
    shadowing = Shadowing({"host": tier})
    for reads, writes in ((False, True), (True, False)):
        shadowing(replace(prompt(0), reads=reads, writes=writes))
    assert shadowing.close()
    assert tier.report() is None
