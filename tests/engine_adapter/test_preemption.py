"""Sequences that give way when blocks run out, and come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engine_adapter.engine.request import CacheUse
from engine_adapter.engine.runner import Chunk, ModelRunner
from policies.reload import AlwaysCompute, AlwaysLoad
from tests.engine_adapter.rig import BLOCK_TOKENS, CleanIds, MakeRig, greedy, prompt_of, slow_tier


@pytest.fixture
def prefilled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the lengths of chunks that are more than the next token of a sequence."""
    lengths, forward = list[int](), ModelRunner.forward

    def counted(runner: ModelRunner, chunks: Sequence[Chunk]) -> torch.Tensor:
        lengths.extend(len(chunk.tokens) for chunk in chunks if len(chunk.tokens) > 1)
        return forward(runner, chunks)

    monkeypatch.setattr(ModelRunner, "forward", counted)
    return lengths


@pytest.mark.parametrize("tiers", [None, slow_tier([])], ids=["host", "disk"])
def test_what_a_preempted_sequence_had_computed_is_loaded_when_it_comes_back(
    make_rig: MakeRig, clean_ids: CleanIds, prefilled: list[int], tiers: Any
) -> None:
    prompts = [prompt_of(20, seed) for seed in range(6)]
    rig = make_rig(num_blocks=16, tiers=tiers, policy=AlwaysLoad(), max_sequences=6)

    answers = rig.generate_together([greedy(prompt, 50) for prompt in prompts])

    num_preempted = rig.engine.statistics().num_preempted
    assert num_preempted > 0
    assert [answer.token_ids for answer in answers] == [clean_ids(prompt, 50) for prompt in prompts]
    assert sum(prefilled) <= 6 * 20 + num_preempted * BLOCK_TOKENS


def test_what_is_not_loaded_is_computed_again(
    make_rig: MakeRig, clean_ids: CleanIds, prefilled: list[int]
) -> None:
    prompts = [prompt_of(20, seed) for seed in range(6)]
    rig = make_rig(num_blocks=16, policy=AlwaysCompute(), max_sequences=6)

    answers = rig.generate_together([greedy(prompt, 50, cache=CacheUse.OFF) for prompt in prompts])

    assert [answer.token_ids for answer in answers] == [clean_ids(prompt, 50) for prompt in prompts]
    assert sum(prefilled) > 6 * 20 + rig.engine.statistics().num_preempted * BLOCK_TOKENS


def test_coming_back_is_no_part_of_what_is_told_of_the_prompt(make_rig: MakeRig) -> None:
    prompts = [prompt_of(20, seed) for seed in range(6)]
    rig = make_rig(num_blocks=16, max_sequences=6)

    answers = rig.generate_together([greedy(prompt, 50) for prompt in prompts])

    assert rig.engine.statistics().num_preempted > 0
    for answer in answers:
        assert answer.usage.tokens_by_source == {"computed": 20}
        assert (answer.usage.planned, answer.usage.load_s) == (None, 0.0)
    assert rig.engine.statistics().saved_s == 0.0
