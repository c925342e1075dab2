"""Steps are measured at the start, however long the very first of them takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from engine_adapter.calibrate import measure_steps
from engine_adapter.engine.costs import CostBook
from engine_adapter.engine.runner import Chunk
from kvstore.clock import Clock
from tests.engine_adapter.rig import BLOCK_TOKENS, MakeRig


class SlowAtFirst:
    """A runner that reads its weights in the first step, for a minute; so much a token from then on."""

    def __init__(self, token_s: float) -> None:
        self.now_s = 0.0
        self._token_s = token_s
        self._is_warm = False

    def forward(self, chunks: Sequence[Chunk]) -> None:
        self.now_s += self._token_s * sum(len(chunk.tokens) for chunk in chunks) if self._is_warm else 60.0
        self._is_warm = True


@pytest.mark.parametrize("token_s", [0.001, 0.02], ids=["usual", "time for two kinds of steps only"])
def test_a_first_step_that_takes_a_minute_leaves_time_to_measure_others(
    token_s: float, make_rig: MakeRig
) -> None:
    slow = SlowAtFirst(token_s)
    runner: Any = slow
    rig, costs = make_rig(num_blocks=256), CostBook(BLOCK_TOKENS * 1024)
    measure_steps(runner, rig.pool, costs, Clock(monotonic_s=lambda: slow.now_s), most_tokens=512)
    cost = costs.compute()
    assert cost is not None
    assert cost.prefill_s(0, 128, 512) == pytest.approx(128 * token_s, rel=0.05)
    assert cost.prefill_s(0, 16, 512) == pytest.approx(16 * token_s, rel=0.05)
