"""Blocks end with their time, in the pool as in the store."""

from __future__ import annotations

import pytest

from kvstore.clock import Clock
from kvstore.tier import TierSpec
from tests.engine_adapter.rig import CleanIds, MakeRig, greedy, prompt_of


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
