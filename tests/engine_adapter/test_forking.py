"""Several answers to one prompt, which is computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engine_adapter.engine.answers import answers_of, likeliest, usage_of
from engine_adapter.engine.engine import Handle
from engine_adapter.engine.events import Completion, Event, Finished, TokenLogprobs, Usage
from engine_adapter.engine.request import CacheUse, Request, Sampling
from engine_adapter.engine.runner import Chunk, ModelRunner
from kvstore.errors import OverloadedError, RequestError
from tests.engine_adapter.pool_kinds import in_every_pool
from tests.engine_adapter.rig import CleanIds, Events, MakeRig, greedy, prompt_of
from tests.eventually import eventually


def several(prompt: Sequence[int], n: int, num_tokens: int = 12, **options: Any) -> Request:
    cache = options.pop("cache", CacheUse.ON)
    wanted = {"temperature": 0, "max_tokens": num_tokens, "ignore_eos": True, **options}
    return Request(prompt, Sampling(n=n, **wanted), cache)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the tokens that models compute, as ``prefill`` and ``decode``."""
    counts, forward = Counter[str](), ModelRunner.forward

    def counted(runner: ModelRunner, chunks: Sequence[Chunk]) -> torch.Tensor:
        for chunk in chunks:
            is_decode = len(chunk.tokens) == 1 and chunk.start > 0
            counts["decode" if is_decode else "prefill"] += len(chunk.tokens)
        return forward(runner, chunks)

    monkeypatch.setattr(ModelRunner, "forward", counted)
    return counts


@in_every_pool
@pytest.mark.parametrize("cache", CacheUse)
@pytest.mark.parametrize("num_prompt", [1, 5, 48, 50])
@pytest.mark.parametrize("max_batched_tokens", [11, 512])
def test_greedy_answers_are_all_the_clean_one_and_the_prompt_is_computed_once(
    make_rig: MakeRig,
    clean_ids: CleanIds,
    computed: Counter[str],
    cache: CacheUse,
    num_prompt: int,
    max_batched_tokens: int,
) -> None:
    rig, prompt = make_rig(max_batched_tokens=max_batched_tokens, max_sequences=8), prompt_of(num_prompt, 1)

    answers = rig.engine.generate_all(several(prompt, 4, cache=cache))

    assert [answer.token_ids for answer in answers] == [clean_ids(prompt, 12)] * 4
    assert computed == {"prefill": num_prompt, "decode": 4 * 11}
    assert [answer.usage.tokens_by_source["computed"] for answer in answers] == [num_prompt, 0, 0, 0]
    assert usage_of([answer.usage for answer in answers]).completion_tokens == 48


@in_every_pool
@pytest.mark.parametrize("cache", [CacheUse.ON, CacheUse.OFF])
def test_seeded_answers_are_those_of_single_requests_with_the_next_seeds(
    make_rig: MakeRig, cache: CacheUse
) -> None:
    rig, prompt = make_rig(), prompt_of(50, 1)
    together = rig.engine.generate_all(several(prompt, 4, 30, temperature=1.0, seed=7, cache=cache))

    singles = [
        rig.engine.generate(several(prompt, 1, 30, temperature=1.0, seed=7 + index, cache=cache))
        for index in range(4)
    ]

    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in singles]
    assert [answer.text for answer in together] == [answer.text for answer in singles]
    assert len({answer.token_ids for answer in together}) == 4


def test_without_a_seed_each_answer_draws_for_itself(make_rig: MakeRig) -> None:
    answers = make_rig().engine.generate_all(several(prompt_of(20, 1), 4, 30, temperature=1.0))

    assert len({answer.token_ids for answer in answers}) == 4


@in_every_pool
@pytest.mark.parametrize(("cache", "num_blocks"), [(CacheUse.ON, 6 + 4), (CacheUse.OFF, 4 * 7)])
def test_whole_blocks_are_shared_and_the_rest_is_each_ones_own(
    make_rig: MakeRig, cache: CacheUse, num_blocks: int
) -> None:
    rig, events = make_rig(num_blocks=256), Events()
    handle = rig.engine.submit(several(prompt_of(50, 1), 4, 400, cache=cache), events)
    events.wait_for_tokens(4)
    held: set[int] = set()

    def look() -> None:
        for sequence in rig.engine._scheduler.running:
            held.update(sequence.blocks[:7])

    rig.on_engine_thread(look)
    rig.engine.check()
    assert len(held) == num_blocks
    rig.engine.cancel(handle)
    events.answers(4)


@in_every_pool
def test_who_reads_nothing_shares_no_block_that_others_published(
    make_rig: MakeRig, clean_ids: CleanIds, computed: Counter[str]
) -> None:
    rig, prompt = make_rig(), prompt_of(50, 1)
    rig.engine.generate(greedy(prompt))
    computed.clear()

    answers = rig.engine.generate_all(several(prompt, 3, cache=CacheUse.WRITE))

    assert [answer.token_ids for answer in answers] == [clean_ids(prompt, 12)] * 3
    assert computed["prefill"] == 50


@pytest.mark.parametrize("num_tokens", [0, 8])
def test_cancelling_ends_all_answers(make_rig: MakeRig, num_tokens: int) -> None:
    rig, events = make_rig(), Events()
    handle = rig.engine.submit(several(prompt_of(300, 1), 4, 200), events)
    events.wait_for_tokens(num_tokens)

    rig.engine.cancel(handle)

    assert [answer.reason for answer in events.answers(4)] == ["cancelled"] * 4


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_cancelling_one_answer_leaves_the_others(make_rig: MakeRig, num_tokens: int) -> None:
    rig, events = make_rig(max_batched_tokens=32), Events()
    handle = rig.engine.submit(several(prompt_of(300, 1), 3, 20), events)
    events.wait_for_tokens(num_tokens)

    rig.engine.cancel(Handle(handle[1:2]))

    assert [answer.reason for answer in events.answers(3)] == ["length", "cancelled", "length"]
    rig.check_at_rest()


@in_every_pool
@pytest.mark.parametrize("cache", [CacheUse.ON, CacheUse.WRITE])
def test_under_pressure_answers_are_preempted_and_stay_the_same(make_rig: MakeRig, cache: CacheUse) -> None:
    roomy, tight = make_rig(num_blocks=96), make_rig(num_blocks=16, max_sequences=6)
    request = several(prompt_of(20, 1), 6, 50, temperature=1.0, seed=1, cache=cache)

    expected, answers = roomy.engine.generate_all(request), tight.engine.generate_all(request)

    assert tight.engine.statistics().num_preempted > 0 == roomy.engine.statistics().num_preempted
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]


@pytest.mark.parametrize("cache", [CacheUse.ON, CacheUse.OFF])
def test_answers_for_which_there_is_no_room_now_come_later(
    make_rig: MakeRig, clean_ids: CleanIds, cache: CacheUse
) -> None:
    rig, prompt, other, events = make_rig(max_sequences=4), prompt_of(50, 1), prompt_of(20, 2), Events()
    rig.engine.submit(greedy(other, 60), events)
    events.wait_for_tokens(1)

    answers = rig.engine.generate_all(several(prompt, 4, cache=cache))

    assert [answer.token_ids for answer in answers] == [clean_ids(prompt, 12)] * 4
    assert events.finished().reason == "length"
    assert events.token_ids == clean_ids(other, 60)


@pytest.mark.parametrize("cache", [CacheUse.ON, CacheUse.OFF])
def test_answers_of_one_token_need_the_prompt_no_more_than_once(
    make_rig: MakeRig, computed: Counter[str], cache: CacheUse
) -> None:
    answers = make_rig().engine.generate_all(several(prompt_of(50, 1), 8, 1, cache=cache))

    assert {len(answer.token_ids) for answer in answers} == {1}
    assert computed == {"prefill": 50}


def test_a_step_that_fails_before_the_prompt_is_complete_ends_all(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_runner: ModelRunner, _chunks: Sequence[Chunk]) -> torch.Tensor:
        raise RuntimeError("out of memory")

    rig = make_rig()
    monkeypatch.setattr(ModelRunner, "forward", broken)
    answers = rig.engine.generate_all(several(prompt_of(20, 1), 3))

    assert [answer.error for answer in answers] == ["the step failed: out of memory"] * 3


def test_a_caller_that_raises_for_one_answer_hears_the_others(make_rig: MakeRig) -> None:
    rig, heard = make_rig(), list[Event]()

    def picky(event: Event) -> None:
        heard.append(event)
        if event.index == 1 and not isinstance(event, Finished):
            raise ConnectionError("gone")

    rig.engine.submit(several(prompt_of(20, 1), 3), picky)

    eventually(lambda: sum(isinstance(event, Finished) for event in heard) == 3)
    assert [answer.reason for answer in answers_of(heard)] == ["length", "error", "length"]


def test_more_answers_than_can_run_are_refused(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=10, max_sequences=4)
    with pytest.raises(RequestError, match="n: 5 answers exceed the 4 that run at a time"):
        rig.engine.submit(several([1], 5), Events())
    with pytest.raises(RequestError, match="n: 4 answers need 12 blocks; the device pool has 10"):
        rig.engine.submit(several(prompt_of(65, 1), 4), Events())
    with pytest.raises(RequestError, match="n: 2 answers need 18 blocks"):
        rig.engine.submit(several(prompt_of(65, 1), 2, cache=CacheUse.OFF), Events())
    assert len(rig.engine.generate_all(several(prompt_of(57, 1), 2, 1))) == 2


def test_each_answer_has_a_place_in_the_queue(make_rig: MakeRig) -> None:
    rig, events = make_rig(max_sequences=2, max_waiting=1), Events()
    rig.engine.submit(several(prompt_of(8, 1), 2, 100), events)
    with pytest.raises(OverloadedError):
        rig.engine.submit(several([1], 2), Events())

    assert rig.engine.generate(greedy([1])).reason == "length"
    assert len(events.answers(2)) == 2


def test_the_likeliest_answer_is_so_by_its_mean_token() -> None:
    def answer(text: str, *logprobs: float) -> Completion:
        told = tuple(TokenLogprobs(0, logprob, 1, ()) for logprob in logprobs)
        return Completion(text, (), "length", Usage(1, 1, {}), logprobs=told)

    answers = [answer("empty"), answer("long", -1, -1, -1), answer("short", -2), answer("best", -0.5, -1.0)]

    assert [one.text for one in likeliest(answers, 3)] == ["best", "long", "short"]
    assert [one.text for one in likeliest(answers, 9)] == ["best", "long", "short", "empty"]
