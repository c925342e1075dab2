from __future__ import annotations

import pytest

from policies.cost_model import ComputeCost, LoadCost
from policies.preemption import bring_back_s

COMPUTE = ComputeCost(step_s=0.02, token_s=0.001, attended_s=0.0)
BLOCK_BYTES = 1000


def back_s(num_tokens: int, *loads: LoadCost) -> float:
    return bring_back_s(num_tokens, COMPUTE, loads, 16, BLOCK_BYTES, 512)


def test_what_is_kept_nowhere_is_computed_again() -> None:
    assert back_s(100) == pytest.approx(0.02 + 0.1)


def test_what_is_kept_is_loaded_and_the_rest_of_the_last_block_computed() -> None:
    fast = LoadCost(0.001, 1e6)
    assert back_s(100, fast) == pytest.approx(0.001 + 6 * BLOCK_BYTES / 1e6 + 0.02 + 4 * 0.001)
    assert back_s(96, fast) == pytest.approx(0.001 + 6 * BLOCK_BYTES / 1e6)


def test_the_faster_way_counts() -> None:
    fast, slow = LoadCost(0.001, 1e6), LoadCost(5.0, 10.0)
    assert back_s(100, slow) == back_s(100)
    assert back_s(100, slow, fast) == back_s(100, fast)


def test_nothing_costs_nothing() -> None:
    assert back_s(0) == 0.0
    assert back_s(0, LoadCost(0.001, 1e6)) == 0.0
