"""How likely tokens were, against transformers' own logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine_adapter.engine.costs import CostBook
from engine_adapter.engine.events import Completion, TokenLogprobs
from engine_adapter.engine.logprobs import PromptCollector, token_logprobs
from engine_adapter.engine.request import CacheUse, Request, Sampling
from engine_adapter.engine.runner import Chunk, ModelRunner
from tests.engine_adapter.rig import VOCAB_SIZE, MakeRig, greedy, prompt_of

NUM_TOP = 4

Plain = Callable[[Sequence[int]], torch.Tensor]


@pytest.fixture(scope="module")
def plain(tiny_folder: Path) -> Plain:
    """Return what transformers alone makes of tokens: log probabilities ``[tokens, vocab]`` after each."""
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)

    @torch.inference_mode()
    def logprobs(tokens: Sequence[int]) -> torch.Tensor:
        logits: torch.Tensor = model(input_ids=torch.tensor([list(tokens)])).logits[0]
        return logits.log_softmax(dim=-1)

    return logprobs


def asking(prompt: Sequence[int], num_tokens: int = 12, **options: Any) -> Request:
    cache = options.pop("cache", CacheUse.ON)
    wanted = {"temperature": 0, "logprobs": NUM_TOP, "max_tokens": num_tokens, "ignore_eos": True, **options}
    return Request(prompt, Sampling(**wanted), cache)


def assert_alike(told: TokenLogprobs, row: torch.Tensor, num_top: int = NUM_TOP) -> None:
    likeliest = row.topk(num_top)
    assert told.logprob == pytest.approx(float(row[told.token]), abs=1e-4)
    assert [token for token, _ in told.top] == likeliest.indices.tolist()
    assert [logprob for _, logprob in told.top] == pytest.approx(likeliest.values.tolist(), abs=1e-4)
    assert told.rank == int((row > row[told.token]).sum()) + 1


def assert_answer_alike(answer: Completion, prompt: Sequence[int], plain: Plain) -> None:
    rows = plain([*prompt, *answer.token_ids])[len(prompt) - 1 : -1]
    assert tuple(one.token for one in answer.logprobs) == answer.token_ids
    for told, row in zip(answer.logprobs, rows, strict=True):
        assert_alike(told, row)


@pytest.mark.parametrize("cache", CacheUse)
@pytest.mark.parametrize("max_batched_tokens", [11, 512])
def test_chosen_tokens_are_as_likely_as_transformers_says(
    make_rig: MakeRig, plain: Plain, cache: CacheUse, max_batched_tokens: int
) -> None:
    prompts = [prompt_of(length, length) for length in (1, 20, 50)]
    rig = make_rig(max_batched_tokens=max_batched_tokens, max_sequences=8)
    rig.engine.generate(greedy(prompts[-1]))

    asked = [asking(prompt, cache=cache) for prompt in prompts]
    *answers, other = rig.generate_together([*asked, greedy(prompt_of(30, 9))])

    for prompt, answer in zip(prompts, answers, strict=True):
        assert_answer_alike(answer, prompt, plain)
    assert other.logprobs == ()


def test_they_are_the_models_own_whatever_is_drawn_from(make_rig: MakeRig, plain: Plain) -> None:
    prompt = prompt_of(20, 1)
    answer = make_rig().engine.generate(
        asking(prompt, temperature=3.0, top_k=50, top_p=0.9, seed=1, logprobs=NUM_TOP)
    )

    assert_answer_alike(answer, prompt, plain)
    assert any(one.rank > NUM_TOP for one in answer.logprobs)


@pytest.mark.parametrize("cache", CacheUse)
@pytest.mark.parametrize("max_batched_tokens", [11, 512])
def test_prompt_tokens_are_as_likely_as_transformers_says(
    make_rig: MakeRig, plain: Plain, cache: CacheUse, max_batched_tokens: int
) -> None:
    prompts = [prompt_of(length, length) for length in (1, 2, 50, 200)]
    rig = make_rig(max_batched_tokens=max_batched_tokens, max_sequences=8)
    for prompt in prompts:
        rig.engine.generate(greedy(prompt))

    asked = [asking(prompt, 3, prompt_logprobs=NUM_TOP, cache=cache) for prompt in prompts]
    *answers, other = rig.generate_together([*asked, greedy(prompt_of(30, 9))])

    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.prompt_logprobs is not None
        first, *rest = answer.prompt_logprobs
        assert first is None
        for told, token, row in zip(rest, prompt[1:], plain(prompt)[:-1], strict=True):
            assert told is not None
            assert told.token == token
            assert_alike(told, row)
        assert_answer_alike(answer, prompt, plain)
        assert answer.usage.tokens_by_source == {"computed": len(prompt)}
    assert other.prompt_logprobs is None


def test_a_prompt_that_was_told_about_is_kept_for_others(make_rig: MakeRig) -> None:
    rig, prompt = make_rig(), prompt_of(50, 1)
    rig.engine.generate(asking(prompt, prompt_logprobs=0))

    assert rig.engine.generate(greedy(prompt)).usage.tokens_by_source == {"computed": 2, "device": 48}


def test_of_zero_likeliest_there_is_the_token_itself(make_rig: MakeRig) -> None:
    answer = make_rig().engine.generate(asking(prompt_of(20, 1), logprobs=0))

    assert {one.top for one in answer.logprobs} == {()}
    assert [one.rank for one in answer.logprobs] == [1] * 12


def test_a_preempted_prompt_is_told_about_once(make_rig: MakeRig, plain: Plain) -> None:
    prompts = [prompt_of(20, seed) for seed in range(6)]
    rig = make_rig(num_blocks=16, max_sequences=6)

    answers = rig.generate_together([asking(prompt, 50, prompt_logprobs=0) for prompt in prompts])

    assert rig.engine.statistics().num_preempted > 0
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_answer_alike(answer, prompt, plain)
        assert answer.prompt_logprobs is not None
        told = [one.logprob for one in answer.prompt_logprobs if one is not None]
        rows = plain(prompt)[:-1].gather(1, torch.tensor(prompt[1:]).unsqueeze(1)).squeeze(1)
        assert told == pytest.approx(rows.tolist(), abs=1e-4)


def test_no_step_holds_more_than_so_many_rows_of_logits(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_rows, forward = list[int](), ModelRunner.forward

    def counted(runner: ModelRunner, chunks: Sequence[Chunk]) -> torch.Tensor:
        logits = forward(runner, chunks)
        num_rows.append(len(logits))
        return logits

    monkeypatch.setattr(ModelRunner, "forward", counted)
    rig = make_rig(num_blocks=128)
    rig.engine.generate(greedy(prompt_of(300, 1), 4))
    assert set(num_rows) == {1}
    num_rows.clear()

    rig.generate_together([asking(prompt_of(300, seed), 2, prompt_logprobs=1) for seed in (2, 3)])

    assert sum(num_rows) >= 600
    assert max(num_rows) <= 128 + 2


def test_more_likeliest_than_there_are_tokens_are_all_of_them() -> None:
    (told,) = token_logprobs(torch.tensor([[0.0, 1.0]]), [0], 5)

    assert [token for token, _ in told.top] == [1, 0]
    assert sum(torch.tensor([logprob for _, logprob in told.top]).exp()) == pytest.approx(1.0)


def test_every_token_has_its_rank() -> None:
    row = torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    order = row[0].argsort(descending=True).tolist()

    told = token_logprobs(row.expand(VOCAB_SIZE, -1), order, 0)

    assert [one.rank for one in told] == list(range(1, VOCAB_SIZE + 1))


def test_a_prompt_that_begins_again_replaces_what_was_collected() -> None:
    logits = torch.randn(3, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    once, again = PromptCollector(1), PromptCollector(1)
    once.add(1, [5, 6, 7], logits)
    again.add(1, [5, 6], logits[:2])
    again.add(1, [5], logits[:1])
    again.add(2, [6, 7], logits[1:])

    assert again.found == once.found
    assert again.found[0] is None


def test_steps_that_make_logits_of_whole_chunks_teach_nothing_about_others(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = Mock()
    monkeypatch.setattr(CostBook, "note_step", note)
    rig = make_rig()

    def learnt(request: Request) -> list[int]:
        note.reset_mock()
        rig.engine.generate(request)
        return [call.args[0].tokens for call in note.call_args_list]

    assert learnt(asking(prompt_of(50, 1), 3, prompt_logprobs=0)) == [0, 0]
    assert learnt(asking(prompt_of(50, 2), 3)) == [50, 0, 0]
