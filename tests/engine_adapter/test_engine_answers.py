from __future__ import annotations

from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from backends.disk import DiskBackend
from engine_adapter.engine.events import Delta, Finished
from engine_adapter.engine.models import LoadedModel, load_model
from engine_adapter.engine.request import CacheUse, Request, Sampling
from kvstore.arena import Arena
from kvstore.tier import TierSpec
from tests.engine_adapter.pool_kinds import in_every_pool
from tests.engine_adapter.rig import (
    BLOCK_TOKENS,
    CONTEXT_TOKENS,
    CleanIds,
    Events,
    MakeRig,
    greedy,
    host_tier,
    prompt_of,
    tier,
)


def sources(computed: int, **tiers: int) -> dict[str, int]:
    return {"computed": computed, **tiers}


@in_every_pool
def test_greedy_answers_are_those_of_transformers(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    prompts = [prompt_of(length, seed) for seed, length in enumerate([1, 7, 8, 9, 16, 50, 64, 100])]
    rig = make_rig(max_batched_tokens=32, max_sequences=8)

    answers = rig.generate_together([greedy(prompt) for prompt in prompts])

    assert [answer.token_ids for answer in answers] == [clean_ids(prompt, 12) for prompt in prompts]
    assert all(answer.reason == "length" for answer in answers)
    assert all(
        sum(answer.usage.tokens_by_source.values()) == answer.usage.prompt_tokens for answer in answers
    )


@in_every_pool
@pytest.mark.parametrize("max_batched_tokens", [3, 8, 11, 512])
def test_prompts_that_share_prefixes_keep_their_own_answers(
    make_rig: MakeRig, clean_ids: CleanIds, max_batched_tokens: int
) -> None:
    stem, random = prompt_of(64, 1), Random(1)
    prompts = [
        stem[: random.randrange(1, 64)] + prompt_of(random.randrange(0, 30), seed) for seed in range(12)
    ]
    prompts += [stem, stem, stem[:40], stem[:40]]
    rig = make_rig(num_blocks=96, max_batched_tokens=max_batched_tokens, max_sequences=3)

    answers = rig.generate_together([greedy(prompt, 8) for prompt in prompts])

    assert [answer.token_ids for answer in answers] == [clean_ids(prompt, 8) for prompt in prompts]
    assert sum(answer.usage.cached_tokens for answer in answers) > 0


def test_a_prompt_seen_before_comes_from_the_device(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    rig, prompt = make_rig(), prompt_of(50, 1)
    first, second = rig.engine.generate(greedy(prompt)), rig.engine.generate(greedy(prompt))

    assert first.token_ids == second.token_ids == clean_ids(prompt, 12)
    assert first.usage.tokens_by_source == sources(50)
    assert second.usage.tokens_by_source == sources(2, device=48)


@in_every_pool
def test_of_a_whole_resident_prompt_one_token_is_computed_on_a_private_copy(
    make_rig: MakeRig, clean_ids: CleanIds
) -> None:
    rig, prompt = make_rig(), prompt_of(48, 1)
    rig.engine.generate(greedy(prompt))
    published = rig.pool.acquire(rig.keys(prompt)[-1])
    assert published is not None
    before, after = bytearray(rig.pool.shape.block_bytes), bytearray(rig.pool.shape.block_bytes)
    rig.pool.read_block(published, memoryview(before)).wait()
    rig.pool.release([published])

    again = rig.engine.generate(greedy(prompt))

    assert again.token_ids == clean_ids(prompt, 12)
    assert again.usage.tokens_by_source == sources(1, device=47)
    rig.pool.read_block(published, memoryview(after)).wait()
    assert before == after


def test_a_whole_resident_prompt_fits_a_pool_of_its_own_size(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    rig, prompt = make_rig(num_blocks=6), prompt_of(48, 1)

    answers = [rig.engine.generate(greedy(prompt, 1)) for _ in range(3)]

    assert {answer.token_ids for answer in answers} == {clean_ids(prompt, 1)}


@in_every_pool
def test_a_prompt_comes_back_from_host_memory(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    rig, prompt = make_rig(), prompt_of(50, 1)
    rig.engine.generate(greedy(prompt))
    rig.forget_device()

    answer = rig.engine.generate(greedy(prompt))

    assert answer.token_ids == clean_ids(prompt, 12)
    assert answer.usage.tokens_by_source == sources(2, host=48)
    assert rig.engine.generate(greedy(prompt)).usage.tokens_by_source == sources(2, device=48)


@in_every_pool
def test_the_last_token_of_a_whole_prompt_from_host_memory_is_computed(
    make_rig: MakeRig, clean_ids: CleanIds
) -> None:
    rig, prompt = make_rig(), prompt_of(48, 1)
    rig.engine.generate(greedy(prompt))
    rig.forget_device()

    answer = rig.engine.generate(greedy(prompt))

    assert answer.token_ids == clean_ids(prompt, 12)
    assert answer.usage.tokens_by_source == sources(1, host=47)


@in_every_pool
def test_a_prompt_comes_back_from_disk_in_a_new_process(
    make_rig: MakeRig, clean_ids: CleanIds, tmp_path: Path
) -> None:
    def tiers(arena: Arena) -> list[TierSpec]:
        return [host_tier(arena, 2**20), tier(DiskBackend(tmp_path / "blocks"), "disk")]

    prompt = prompt_of(50, 1)
    first = make_rig(tiers=tiers)
    first.engine.generate(greedy(prompt))
    assert first.engine.flush(10)
    first.engine.close(10)
    first.store.close(10)

    answer = make_rig(tiers=tiers).engine.generate(greedy(prompt))

    assert answer.token_ids == clean_ids(prompt, 12)
    assert answer.usage.tokens_by_source == sources(2, disk=48)
    assert answer.usage.load_s > 0


@in_every_pool
def test_holes_are_computed_and_what_follows_them_is_loaded(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    rig, prompt = make_rig(), prompt_of(75, 1)
    rig.engine.generate(greedy(prompt))
    rig.forget_device()
    keys = rig.keys(prompt)
    assert rig.store.evict([keys[0], keys[3], keys[4]]) == 3

    answer = rig.engine.generate(greedy(prompt))

    assert answer.token_ids == clean_ids(prompt, 12)
    assert answer.usage.tokens_by_source == sources(3 * 8 + 3, host=6 * 8)


@in_every_pool
def test_an_answer_is_part_of_the_next_prompt(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    rig, prompt = make_rig(), prompt_of(20, 1)
    answer = rig.engine.generate(greedy(prompt, 30))
    conversation = [*prompt, *answer.token_ids, *prompt_of(5, 2)]

    following = rig.engine.generate(greedy(conversation))

    # The answer's last token was never computed: of 50 tokens 49, so 6 blocks, are there.
    assert following.usage.tokens_by_source == sources(55 - 48, device=48)
    assert following.token_ids == clean_ids(conversation, 12)


@pytest.mark.parametrize(
    ("first", "second", "cached"),
    [
        (CacheUse.ON, CacheUse.ON, 48),
        (CacheUse.ON, CacheUse.READ, 48),
        (CacheUse.WRITE, CacheUse.ON, 48),
        (CacheUse.ON, CacheUse.WRITE, 0),
        (CacheUse.ON, CacheUse.OFF, 0),
        (CacheUse.OFF, CacheUse.ON, 0),
        (CacheUse.READ, CacheUse.ON, 0),
    ],
)
@pytest.mark.parametrize("forget", [False, True])
def test_a_request_says_what_it_does_with_the_cache(
    make_rig: MakeRig, clean_ids: CleanIds, first: CacheUse, second: CacheUse, cached: int, forget: bool
) -> None:
    rig, prompt = make_rig(), prompt_of(50, 1)
    answers = [rig.engine.generate(greedy(prompt, cache=first))]
    if forget:
        rig.forget_device()
    answers.append(rig.engine.generate(greedy(prompt, cache=second)))

    assert [answer.token_ids for answer in answers] == [clean_ids(prompt, 12)] * 2
    assert [answer.usage.cached_tokens for answer in answers] == [0, cached]


def test_reading_alone_leaves_the_pool_as_it_was(make_rig: MakeRig) -> None:
    rig, prompt = make_rig(), prompt_of(50, 1)
    rig.engine.generate(greedy(prompt))
    rig.forget_device()

    answers = [rig.engine.generate(greedy(prompt, cache=CacheUse.READ)) for _ in range(2)]

    assert [answer.usage.tokens_by_source for answer in answers] == [sources(2, host=48)] * 2
    assert rig.pool.num_cached == 0


def test_salts_do_not_share(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    rig, prompt = make_rig(), prompt_of(50, 1)
    cached, answers = [], []
    for salt in ["", "a", "b", "a", ""]:
        answers.append(rig.engine.generate(greedy(prompt, salt=salt)))
        cached.append(answers[-1].usage.cached_tokens)

    assert cached == [0, 0, 0, 48, 48]
    assert {answer.token_ids for answer in answers} == {clean_ids(prompt, 12)}


@in_every_pool
def test_equal_prompts_at_once_are_computed_once(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    rig, prompt = make_rig(max_sequences=16), prompt_of(48, 1)

    answers = rig.generate_together([greedy(prompt)] * 16)

    assert {answer.token_ids for answer in answers} == {clean_ids(prompt, 12)}
    computed = sum(answer.usage.tokens_by_source["computed"] for answer in answers)
    assert computed == 48 + 15


@in_every_pool
def test_a_pool_too_small_for_all_preempts_and_still_answers_alike(
    make_rig: MakeRig, clean_ids: CleanIds
) -> None:
    prompts = [prompt_of(20, seed) for seed in range(6)]
    rig = make_rig(num_blocks=16, max_sequences=6)

    answers = rig.generate_together([greedy(prompt, 50) for prompt in prompts])

    assert rig.engine.statistics().num_preempted > 0
    assert [answer.token_ids for answer in answers] == [clean_ids(prompt, 50) for prompt in prompts]
    assert all(sum(answer.usage.tokens_by_source.values()) == 20 for answer in answers)


@pytest.mark.parametrize("cache", [CacheUse.ON, CacheUse.OFF])
def test_a_preempted_request_draws_on_as_if_nothing_had_happened(make_rig: MakeRig, cache: CacheUse) -> None:
    requests = [
        Request(prompt_of(20, seed), Sampling(seed=seed, max_tokens=50, ignore_eos=True), cache)
        for seed in range(6)
    ]
    roomy, tight = make_rig(num_blocks=96), make_rig(num_blocks=16)

    assert [a.token_ids for a in roomy.generate_together(requests)] == [
        a.token_ids for a in tight.generate_together(requests)
    ]
    assert tight.engine.statistics().num_preempted > 0
    assert roomy.engine.statistics().num_preempted == 0


def test_a_request_that_outgrows_the_pool_ends_with_what_it_has(
    make_rig: MakeRig, clean_ids: CleanIds
) -> None:
    rig, prompt = make_rig(num_blocks=4), prompt_of(20, 1)

    answer = rig.engine.generate(greedy(prompt, 50))

    # 32 tokens fit, and one more is chosen from the last of them.
    assert answer.token_ids == clean_ids(prompt, 13)
    assert answer.reason == "length"


def test_a_request_ends_with_the_context(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=CONTEXT_TOKENS // BLOCK_TOKENS)
    longest = Request(prompt_of(CONTEXT_TOKENS - 1, 1), Sampling(temperature=0, ignore_eos=True))

    answer = rig.engine.generate(longest)

    assert (len(answer.token_ids), answer.reason) == (1, "length")


def test_an_end_token_ends_the_answer_and_is_not_part_of_it(
    make_rig: MakeRig, clean_ids: CleanIds, tiny_model: LoadedModel
) -> None:
    prompt = next(
        p for p in (prompt_of(10, seed) for seed in count()) if (ids := clean_ids(p, 6)).index(ids[4]) == 4
    )
    ids = clean_ids(prompt, 6)
    model = LoadedModel(**{**vars(tiny_model), "eos_token_ids": frozenset({ids[4]})})
    rig = make_rig(model=model)

    stopped = rig.engine.generate(Request(prompt, Sampling(temperature=0, max_tokens=6)))
    ignored = rig.engine.generate(greedy(prompt, 6))

    assert (stopped.token_ids, stopped.reason, stopped.usage.completion_tokens) == (ids[:4], "stop", 4)
    assert (ignored.token_ids, ignored.reason) == (ids, "length")


def test_a_stop_string_ends_the_answer_before_it(
    make_rig: MakeRig, clean_ids: CleanIds, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    rig, prompt = make_rig(), prompt_of(10, 7)
    text = rig.engine.generate(greedy(prompt, 40)).text
    stop = text[12:15]
    cut = text.index(stop)

    answer = rig.engine.generate(
        Request(prompt, Sampling(temperature=0, max_tokens=40, ignore_eos=True, stop=("never", stop)))
    )

    assert (answer.text, answer.reason) == (text[:cut], "stop")
    whole = tiny_tokenizer.decode(list(clean_ids(prompt, 40)), skip_special_tokens=True)
    assert text == str(whole).rstrip("\N{REPLACEMENT CHARACTER}")


def test_events_come_one_token_each_with_the_time_between_them(make_rig: MakeRig) -> None:
    rig = make_rig()
    events: list[Any] = list(rig.engine.stream(greedy(prompt_of(10, 1), 5)))

    deltas = [event for event in events if isinstance(event, Delta) and event.token_ids]
    assert [len(delta.token_ids) for delta in deltas] == [1] * 5
    assert deltas[0].since_previous_s is None
    gaps = [delta.since_previous_s or 0.0 for delta in deltas]
    usage = events[-1].usage
    assert isinstance(events[-1], Finished)
    assert usage.itl_s == pytest.approx(sum(gaps) / 4)
    assert 0 <= usage.queue_s <= usage.ttft_s


def test_the_same_seed_draws_the_same_in_any_company(make_rig: MakeRig) -> None:
    rig, prompt = make_rig(), prompt_of(30, 1)
    seeded = Request(prompt, Sampling(temperature=0.8, top_p=0.9, top_k=50, seed=5, max_tokens=20))

    alone = rig.engine.generate(seeded)
    company = rig.generate_together([seeded, *(greedy(prompt_of(20, seed)) for seed in range(5)), seeded])

    assert company[0].token_ids == company[-1].token_ids == alone.token_ids


def test_changed_weights_find_nothing_of_the_old_ones(
    make_rig: MakeRig, clean_ids: CleanIds, tiny_folder: Path
) -> None:
    model = load_model(tiny_folder, block_tokens=BLOCK_TOKENS)
    rig, prompt = make_rig(model=model), prompt_of(50, 1)
    before = rig.engine.generate(greedy(prompt))
    model.model.model.layers[0].self_attn.k_proj.weight.data *= -1

    rig.engine.model_changed()
    after = rig.engine.generate(greedy(prompt))
    uncached = rig.engine.generate(greedy(prompt, cache=CacheUse.OFF))

    assert after.usage.cached_tokens == 0
    assert after.token_ids == uncached.token_ids != before.token_ids


@in_every_pool
def test_requests_under_way_when_weights_change_leave_nothing_behind(
    make_rig: MakeRig, tiny_folder: Path
) -> None:
    model = load_model(tiny_folder, block_tokens=BLOCK_TOKENS)
    rig, prompt, events = make_rig(model=model), prompt_of(50, 1), Events()
    rig.engine.submit(greedy(prompt, 150), events)
    events.wait_for_tokens(1)

    rig.engine.model_changed()
    num_stored = rig.store.statistics().tiers[1].num_blocks
    assert events.finished().reason == "length"

    assert rig.store.statistics().tiers[1].num_blocks == num_stored < 200 // BLOCK_TOKENS
    assert rig.engine.generate(greedy(prompt)).usage.cached_tokens == 0


def test_statistics_tell_of_every_request(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.generate_together([greedy(prompt_of(20, seed), 4) for seed in range(3)])

    statistics = rig.engine.statistics()
    assert statistics.requests == {"length": 3}
    assert statistics.completion_tokens == 12
    assert statistics.tokens_by_source == {"computed": 60}
    assert (statistics.num_waiting, statistics.num_running) == (0, 0)
