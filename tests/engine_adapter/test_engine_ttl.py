"""Blocks end with their time, in the pool as in the store."""

from __future__ import annotations

import pytest

from kvstore.clock import Clock
from kvstore.namespace import salt_digest
from kvstore.retention import Lifetime, Retention, TenantRule
from kvstore.tier import TierSpec
from tests.engine_adapter.rig import CleanIds, Events, MakeRig, greedy, prompt_of
from tests.eventually import eventually


@pytest.mark.parametrize("host_blocks", [0, 256])
def test_a_ttl_ends_blocks_on_the_device_as_well(
    make_rig: MakeRig, clean_ids: CleanIds, host_blocks: int
) -> None:
    now_ms = 10**12
    clock = Clock(wall_ms=lambda: now_ms)
    tiers = None if host_blocks else lambda _arena: list[TierSpec]()
    rig, prompt = make_rig(tiers=tiers, clock=clock), prompt_of(50, 1)
    request = greedy(prompt, 1, ttl_s=60.0)
    rig.engine.generate(request)
    rig.engine.flush()

    now_ms += 50_000
    assert rig.engine.generate(request).usage.tokens_by_source == {"computed": 2, "device": 48}
    now_ms += 50_000
    assert rig.engine.generate(request).usage.cached_tokens == 48, "a hit has extended it"
    rig.engine.flush()
    now_ms += 60_000
    answer = rig.engine.generate(greedy(prompt))
    assert answer.usage.tokens_by_source == {"computed": 50}
    assert answer.token_ids == clean_ids(prompt, 12)
    assert rig.engine.generate(request).usage.cached_tokens == 48, "it has begun anew"


class Time:
    """A wall clock that tests move."""

    now_ms = 10**12

    def clock(self) -> Clock:
        return Clock(wall_ms=lambda: self.now_ms)


@pytest.mark.parametrize("host_blocks", [0, 256])
def test_at_the_hard_end_an_idle_pool_lets_go_and_the_answer_is_the_same(
    make_rig: MakeRig, clean_ids: CleanIds, host_blocks: int
) -> None:
    time = Time()
    tiers = None if host_blocks else lambda _arena: list[TierSpec]()
    rig, prompt = make_rig(tiers=tiers, clock=time.clock()), prompt_of(50, 1)
    rule = TenantRule(Lifetime(hard_ttl_s=60.0))
    rig.store.set_retention(Retention(tenants={salt_digest("acme"): rule}))
    asked, unruled = greedy(prompt, salt="acme"), greedy(prompt)
    assert rig.engine.generate(asked).token_ids == clean_ids(prompt, 12)
    rig.engine.generate(unruled)
    assert rig.engine.flush(10)

    time.now_ms += 59_000
    assert rig.engine.generate(asked).usage.cached_tokens == 48, "used again and again: no matter"
    rig.engine.flush()
    num_held = rig.pool.num_cached
    time.now_ms += 1_000
    eventually(lambda: rig.pool.num_cached < num_held)
    rig.on_engine_thread(lambda: None)
    assert set(rig.store.peek(rig.keys(prompt, "acme"))) == {None}
    assert not rig.store.over_on_device()
    answer = rig.engine.generate(asked)
    assert answer.usage.tokens_by_source == {"computed": 50}
    assert answer.token_ids == clean_ids(prompt, 12)
    assert rig.engine.generate(unruled).usage.cached_tokens == 48, "another tenant's"


def test_a_rule_that_comes_later_ends_what_only_the_pool_holds(make_rig: MakeRig) -> None:
    time = Time()
    rig, prompt = make_rig(tiers=lambda _arena: [], clock=time.clock()), prompt_of(50, 1)
    rig.engine.generate(greedy(prompt, salt="acme"))
    time.now_ms += 10_000
    prefix = rig.keys(prompt, "acme")[1]
    rig.store.set_retention(Retention(prefixes={prefix: Lifetime(hard_ttl_s=15.0)}))
    assert rig.engine.generate(greedy(prompt, salt="acme")).usage.cached_tokens == 48
    time.now_ms += 5_000
    assert rig.engine.generate(greedy(prompt, salt="acme")).usage.cached_tokens == 0


def test_a_sequence_goes_on_with_blocks_that_end_meanwhile_and_nobody_else_gets_them(
    make_rig: MakeRig, clean_ids: CleanIds
) -> None:
    time = Time()
    rig, prompt = make_rig(clock=time.clock()), prompt_of(50, 1)
    rig.store.set_retention(Retention(others=TenantRule(Lifetime(hard_ttl_s=60.0))))
    rig.engine.generate(greedy(prompt, 1))
    events = Events()
    rig.engine.submit(greedy(prompt, 200), events)
    events.wait_for_tokens(1)
    time.now_ms += 60_000
    assert rig.engine.generate(greedy(prompt)).usage.cached_tokens == 0
    assert events.finished().reason == "length"
    assert events.token_ids == clean_ids(prompt, 200)
    answer = rig.engine.generate(greedy(prompt))
    assert answer.token_ids == clean_ids(prompt, 12)
