"""What the engine tells of how prompts will be wanted, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine_adapter.engine.foreseeing import Sessions
from engine_adapter.engine.request import CacheUse, Request, Sampling
from kvstore.hints import Hint
from policies.lru import LeafFirstLRU
from tests.engine_adapter.rig import BLOCK_TOKENS, Events, MakeRig, Rig, greedy, prompt_of
from tests.eventually import eventually
from tests.policies.agents import convince

Told = list[tuple[Sequence[bytes], Hint]]
ALL = "pool", "host"


def policy_of(rig: Rig, tier: str) -> LeafFirstLRU:
    policy = rig.pool._policy if tier == "pool" else rig.store._index._ledger(1).policy
    assert isinstance(policy, LeafFirstLRU)
    return policy


def listen(rig: Rig, tier: str = "pool") -> Told:
    """Return where the hints go that a tier is told from now on, with the blocks it has then."""
    told: Told = []
    policy = policy_of(rig, tier)

    def hear(keys: Sequence[bytes], hint: Hint, _now_s: float) -> None:
        told.append(([key for key in keys if key in policy], hint))

    vars(policy)["hear"] = hear
    return told


def resident(rig: Rig, tier: str, keys: Sequence[bytes]) -> list[bool]:
    assert rig.engine.flush(10)
    return [key in policy_of(rig, tier) for key in keys]


def blocks(num: int, seed: int) -> list[int]:
    """Return a prompt of ``num`` whole blocks and one token."""
    return prompt_of(num * BLOCK_TOKENS + 1, seed)


@pytest.mark.parametrize("tier", ALL)
def test_blocks_of_an_ended_session_go_first(make_rig: MakeRig, tier: str) -> None:
    rig = make_rig(num_blocks=20, host_blocks=17)
    rig.on_engine_thread(lambda: convince(policy_of(rig, tier), Hint(ends_session=True, stop="length")))
    older, ended = blocks(7, 1), blocks(7, 2)
    rig.engine.generate(greedy(older, 2))
    rig.engine.generate(greedy(ended, 2, session="one", end_session=True))
    assert resident(rig, tier, [*rig.keys(older), *rig.keys(ended)]) == [True] * 14
    rig.engine.generate(greedy(blocks(9, 3), 2))
    assert resident(rig, tier, rig.keys(older)) == [True] * 7
    assert not all(resident(rig, tier, rig.keys(ended)))


@pytest.mark.parametrize("tier", ALL)
def test_pool_and_store_hear_once_the_blocks_are_there(make_rig: MakeRig, tier: str) -> None:
    rig = make_rig()
    told, prompt = listen(rig, tier), blocks(6, 1)
    rig.engine.generate(greedy(prompt, 1, session="one", expected_pause_s=60))
    assert rig.engine.flush(10)
    [(heard, hint)] = told
    assert heard == rig.keys(prompt)
    assert hint == Hint(pause_s=60, stop="length")


def test_several_answers_to_a_prompt_end_once(make_rig: MakeRig) -> None:
    rig = make_rig()
    told = listen(rig)
    sampling = Sampling(max_tokens=6, ignore_eos=True, seed=1, n=3)
    rig.engine.generate_all(Request(blocks(2, 1), sampling, end_session=True))
    assert rig.engine.flush(10)
    assert [hint for _, hint in told] == [Hint(ends_session=True, stop="length")]


@pytest.mark.parametrize("options", [{"cache": CacheUse.OFF}, {"cache": CacheUse.READ, "salt": "nobody's"}])
def test_who_leaves_nothing_behind_says_nothing_that_matters(
    make_rig: MakeRig, options: dict[str, Any]
) -> None:
    rig = make_rig()
    told = listen(rig)
    rig.engine.generate(greedy(blocks(2, 1), 2, end_session=True, **options))
    assert rig.engine.flush(10)
    assert len(told) == (options["cache"] is not CacheUse.OFF)


def test_a_policy_that_fails_at_a_hint_costs_nobody_anything(make_rig: MakeRig) -> None:
    rig = make_rig()

    def hear(_keys: Sequence[bytes], _hint: Hint, _now_s: float) -> None:
        raise RuntimeError("no")

    vars(policy_of(rig, "pool"))["hear"] = hear
    assert rig.engine.generate(greedy(blocks(2, 1), 2)).error is None
    assert rig.engine.generate(greedy(blocks(2, 1), 2)).error is None
    assert rig.engine.health().ok


def running(rig: Rig, num_tokens: int) -> Events:
    """Let a request run that goes on for so many tokens."""
    events = Events()
    rig.engine.submit(greedy(prompt_of(5, 99), num_tokens), events)
    events.wait_for_tokens(1)
    return events


@pytest.mark.parametrize("tier", ALL)
def test_what_a_queued_request_needs_stays_and_what_nobody_waits_for_goes(
    make_rig: MakeRig, tier: str
) -> None:
    rig = make_rig(num_blocks=32, host_blocks=25, max_sequences=1)
    queued, other = blocks(8, 1), blocks(8, 2)
    rig.engine.generate(greedy(queued, 1))
    rig.engine.generate(greedy(other, 1))
    runs, waits = running(rig, 150), Events()
    rig.engine.submit(greedy(queued, 1), waits)
    runs.finished(60)
    sources = waits.finished().usage.tokens_by_source
    assert sources == {"computed": 1, "device": 8 * BLOCK_TOKENS}
    assert resident(rig, tier, rig.keys(queued)) == [True] * 8
    assert not all(resident(rig, tier, rig.keys(other)))


def num_spared(rig: Rig) -> tuple[int, int]:
    return len(rig.pool.spared), len(rig.store._index.spared)


@pytest.mark.parametrize("end", ["starts", "is cancelled", "is closed"])
def test_nothing_is_spared_for_a_request_that_waits_no_more(make_rig: MakeRig, end: str) -> None:
    rig = make_rig(max_sequences=1)
    runs, waits = running(rig, 200), Events()
    handle = rig.engine.submit(greedy(blocks(4, 1), 1), waits)
    eventually(lambda: num_spared(rig) == (4, 4))
    if end == "starts":
        runs.finished(60)
    elif end == "is cancelled":
        rig.engine.cancel(handle)
    else:
        rig.engine.close(10)
    waits.finished(60)
    eventually(lambda: num_spared(rig) == (0, 0))
    runs.finished(60)


def test_only_the_first_of_a_long_queue_are_told_of(make_rig: MakeRig) -> None:
    rig = make_rig(max_sequences=1, max_waiting=64)
    runs = running(rig, 200)
    handles = [rig.engine.submit(greedy(blocks(1, seed), 1), Events()) for seed in range(40)]
    eventually(lambda: num_spared(rig) == (16, 16))
    rig.engine.cancel(handles[0])
    eventually(lambda: rig.engine.statistics().num_waiting == 39)
    rig.engine.check()
    eventually(lambda: num_spared(rig) == (16, 16))
    for handle in handles:
        rig.engine.cancel(handle)
    runs.finished(60)


def test_a_session_is_known_by_its_last_pause() -> None:
    sessions, request = Sessions(), Request([1], session="one")
    sessions.began(request, 0.0)
    assert sessions.ended(request, 10.0) is None
    sessions.began(request, 25.0)
    assert sessions.ended(request, 30.0) == 15.0
    sessions.began(request, 31.0)
    assert sessions.ended(request, 31.0) == 1.0
    assert sessions.ended(replace(request, salt="another's"), 31.0) is None
    assert sessions.ended(Request([1]), 31.0) is None


def test_sessions_are_forgotten_beyond_a_bound() -> None:
    sessions = Sessions()
    for number in range(10_000):
        request = Request([1], session=f"{number}")
        sessions.ended(request, 0.0)
        sessions.began(request, 1.0)
    assert len(sessions) == 4096
    assert len(sessions._pauses_s) == 4096
