from __future__ import annotations

from collections import Counter

import pytest
import torch

from engine_adapter.engine.request import Sampling
from engine_adapter.engine.sampling import Sampler, choose_tokens

PROBABILITIES = torch.tensor([0.1, 0.4, 0.2, 0.3])
LOGITS = PROBABILITIES.log()


def draws(sampling: Sampling, num: int = 2000) -> Counter[int]:
    sampler = Sampler(sampling)
    return Counter(sampler.draw(LOGITS) for _ in range(num))


def test_greedy_takes_the_largest_logit_of_each_row() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, -1.0, 2.0]])
    greedy = Sampler(Sampling(temperature=0))

    assert choose_tokens(logits, [greedy, greedy]) == [1, 0]


def test_a_draw_follows_the_probabilities() -> None:
    counts = draws(Sampling(seed=1))

    assert [round(counts[token] / 2000, 1) for token in range(4)] == [0.1, 0.4, 0.2, 0.3]


def test_temperature_sharpens() -> None:
    counts = draws(Sampling(seed=1, temperature=0.5))
    squared = PROBABILITIES**2 / (PROBABILITIES**2).sum()

    assert all(abs(counts[token] / 2000 - float(squared[token])) < 0.03 for token in range(4))


def test_a_tiny_temperature_is_greedy() -> None:
    assert draws(Sampling(seed=1, temperature=1e-4), 20) == {1: 20}
    assert Sampler(Sampling(temperature=1e-300)).is_greedy


def test_top_k_leaves_the_likeliest() -> None:
    counts = draws(Sampling(seed=1, top_k=2))

    assert set(counts) == {1, 3}
    assert abs(counts[1] / 2000 - 4 / 7) < 0.03


def test_top_p_leaves_the_fewest_that_reach_it() -> None:
    assert set(draws(Sampling(seed=1, top_p=0.4))) == {1}
    assert set(draws(Sampling(seed=1, top_p=0.41))) == {1, 3}
    assert set(draws(Sampling(seed=1, top_p=0.7))) == {1, 3}
    assert set(draws(Sampling(seed=1, top_p=0.95))) == {0, 1, 2, 3}


def test_top_p_is_taken_among_what_top_k_leaves() -> None:
    # Of 4/7 and 3/7, the first alone reaches one half; of all, it would not.
    assert set(draws(Sampling(seed=1, top_k=2, top_p=0.5))) == {1}


def test_top_k_beyond_the_vocabulary_does_not_restrict() -> None:
    assert set(draws(Sampling(seed=1, top_k=100))) == {0, 1, 2, 3}


def test_a_seed_repeats_itself_whatever_else_is_in_the_batch() -> None:
    alone, together, other = (Sampler(Sampling(seed=seed)) for seed in (7, 7, 8))
    rows = torch.randn(20, 1, 50, generator=torch.Generator().manual_seed(0))

    first = [choose_tokens(row, [alone])[0] for row in rows]
    second = [
        choose_tokens(row.expand(3, -1), [other, Sampler(Sampling(temperature=0)), together])[2]
        for row in rows
    ]

    assert first == second
    assert len(set(first)) > 5


def test_without_a_seed_each_request_draws_for_itself() -> None:
    row = torch.zeros(1, 1000)

    assert len({choose_tokens(row, [Sampler(Sampling())])[0] for _ in range(20)}) > 10


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_a_number_has_no_token_and_spares_the_others(bad: float) -> None:
    logits = torch.tensor([[0.0, bad], [0.0, 1.0], [bad, bad]])
    samplers = [Sampler(Sampling(temperature=0)), Sampler(Sampling(temperature=0)), Sampler(Sampling(seed=1))]

    assert choose_tokens(logits, samplers) == [None, 1, None]
