from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from backends.disk import DiskBackend
from backends.faulty import Fault, Faulty, Operation
from engine_adapter.engine.request import CacheUse, Request, Sampling
from kvstore.arena import Arena
from kvstore.tier import TierSpec
from tests.engine_adapter.pool_kinds import in_every_pool
from tests.engine_adapter.rig import (
    SLOT_BYTES,
    CleanIds,
    Events,
    MakeRig,
    host_tier,
    moody,
    prompt_of,
    tier,
)


def requests_of(random: Random, num: int) -> list[Request]:
    stems = [prompt_of(150, seed) for seed in range(3)]
    requests = []
    for seed in range(num):
        stem = random.choice(stems)[: random.randrange(1, 150)]
        prompt = stem + prompt_of(random.choice([0, 0, random.randrange(30)]), seed)
        use = random.choice([CacheUse.ON, CacheUse.ON, CacheUse.ON, *CacheUse])
        sampling = Sampling(
            temperature=0,
            max_tokens=random.randrange(1, 25),
            ignore_eos=True,
            n=random.choice([1, 1, 1, 2, 4]) if use.writes else 1,
            prompt_logprobs=random.choice([None, None, None, 0]),
        )
        salt, priority = random.choice(["", "", "tenant"]), random.choice([0, 0, 1])
        requests.append(Request(prompt, sampling, use, salt=salt, priority=priority))
    return requests


@in_every_pool
@pytest.mark.parametrize("seed", range(3))
def test_answers_stay_clean_through_pressure_cancellations_and_faults(
    make_rig: MakeRig, clean_ids: CleanIds, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)

    def tiers(arena: Arena) -> list[TierSpec]:
        disk = Faulty(DiskBackend(tmp_path / "blocks"), [Fault(Operation.GET, moody(random))])
        return [host_tier(arena, 24 * SLOT_BYTES), tier(disk, "disk", 60 * SLOT_BYTES, cooldown_s=0.05)]

    rig = make_rig(num_blocks=40, tiers=tiers, max_batched_tokens=48, max_sequences=6, load_deadline_s=0.05)
    requests = requests_of(random, 40)
    heard = [Events() for _ in requests]
    handles = []
    for request, events in zip(requests, heard, strict=True):
        handles.append(rig.engine.submit(request, events))
        if random.random() < 0.3:
            rig.engine.check()
            rig.store.check()
        if random.random() < 0.25:
            rig.engine.cancel(random.choice(handles))

    for request, events in zip(requests, heard, strict=True):
        expected = clean_ids(request.prompt_ids, request.sampling.max_tokens or 0)
        first, *others = events.answers(request.sampling.n, 60)
        for answer in (first, *others):
            assert answer.reason in {"length", "cancelled"}
            is_whole = answer.reason == "length"
            assert answer.token_ids == (expected if is_whole else expected[: len(answer.token_ids)])
        if first.reason == "length":
            assert sum(first.usage.tokens_by_source.values()) == len(request.prompt_ids)
    rig.check_at_rest()
