"""Mode verify, as all engines have it: what is chosen, and how much may differ."""

from __future__ import annotations

import pytest
import torch

from engine_adapter.closeness import are_close, can_compare
from engine_adapter.witnesses import EverySoMany, Witnesses


@pytest.mark.parametrize(
    ("dtype", "rounding", "too_much"),
    [
        (torch.float32, 1e-5, 0.01), (torch.bfloat16, 0.01, 0.2), (torch.float16, 0.01, 0.2),
        (torch.float8_e4m3fn, 0.1, 0.5),
    ],
)  # fmt: skip
def test_numbers_may_differ_by_their_rounding(dtype: torch.dtype, rounding: float, too_much: float) -> None:
    numbers = torch.randn(2, 256)
    assert are_close(numbers, numbers * (1 + rounding), dtype)
    assert not are_close(numbers, numbers * (1 + too_much), dtype)


def test_one_wrong_row_is_enough_and_so_is_a_number_that_is_none() -> None:
    numbers = torch.randn(4, 256)
    wrong, odd = numbers.clone(), numbers.clone()
    wrong[2] = torch.randn(256)
    odd[3, 7] = float("nan")
    assert not are_close(numbers, wrong, torch.bfloat16)
    assert not are_close(numbers, odd, torch.bfloat16)


def test_of_other_numbers_nobody_knows_how_much_they_may_differ() -> None:
    assert can_compare(torch.float16)
    assert not can_compare(torch.uint8)
    assert not can_compare(None)


def test_a_share_is_chosen_evenly() -> None:
    chosen = EverySoMany(0.25)
    assert [chosen.chooses() for _ in range(8)] == [False, False, False, True] * 2
    assert not any(EverySoMany(0).chooses() for _ in range(8))


def test_blocks_of_a_chosen_prompt_are_compared_once() -> None:
    witnesses = Witnesses(0.5)
    assert not witnesses.summon([b"a"])
    assert witnesses.summon([b"b", b"c"])
    assert [witnesses.take(key) for key in (b"a", b"b", b"b", b"c")] == [False, True, False, True]


def test_the_oldest_of_too_many_are_forgotten() -> None:
    witnesses = Witnesses(1.0)
    witnesses.summon(number.to_bytes(2) for number in range(5000))
    assert not witnesses.take((5000 - 4097).to_bytes(2))
    assert witnesses.take((5000 - 4096).to_bytes(2))
