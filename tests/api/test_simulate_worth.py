"""What hits are worth: the same as the reload policy's own reckoning, and at most what computing takes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from api.cli import build_cli
from api.simulate.worth import Account, Prices
from engine_adapter.cost_file import CostFile
from engine_adapter.engine.costs import KnownCosts
from policies.cost_model import ComputeCost, LoadCost, Work
from policies.lines import LineState
from policies.planning import PlanRequest
from policies.split import Splits
from policies.steps import Step

CONVERSATION = Path(__file__).parent / "traces" / "conversation.jsonl.xz"
COMPUTE = ComputeCost(step_s=0.002, token_s=1e-4, attended_s=2e-8, loaded_byte_s=1e-11)
TOKEN_BYTES = 100_000
BLOCK_TOKENS = 16


@settings(deadline=None)
@given(
    st.integers(0, 60),
    st.integers(1, 100),
    st.floats(1e7, 1e11),
    st.floats(0, 0.2),
    st.sampled_from([64, 512]),
)
def test_it_is_what_the_best_split_of_the_reload_policy_takes(
    num_hit: int, num_rest: int, bytes_per_s: float, latency_s: float, chunk_tokens: int
) -> None:
    load = LoadCost(latency_s, bytes_per_s)
    hit_tokens, num_tokens = num_hit * BLOCK_TOKENS, num_hit * BLOCK_TOKENS + num_rest
    request = PlanRequest(
        ["disk"] * num_hit + [None] * (num_rest // BLOCK_TOKENS), num_tokens, BLOCK_TOKENS,
        BLOCK_TOKENS * TOKEN_BYTES, COMPUTE, {"disk": load}, chunk_tokens,
    )  # fmt: skip
    prices = Prices(COMPUTE, chunk_tokens, load, TOKEN_BYTES)
    ttft_s, compute_s = prices.served(hit_tokens, num_tokens, BLOCK_TOKENS)
    best = min((Splits(request).at(block) for block in range(num_hit + 1)), key=lambda split: split.ttft_s)
    best_s = min(best.ttft_s, Splits(request).all_computed().ttft_s)
    assert ttft_s == pytest.approx(best_s, rel=0.03)
    assert compute_s <= prices.computed_s(num_tokens) + 1e-9
    assert ttft_s <= prices.computed_s(num_tokens) + 1e-9


def test_loads_that_cost_nothing_leave_what_is_not_hit() -> None:
    prices = Prices(ComputeCost(0.0, 0.001, 0.0), 512)
    assert prices.served(160, 200, BLOCK_TOKENS) == pytest.approx((0.04, 0.04))
    assert prices.served(0, 200, BLOCK_TOKENS) == pytest.approx((0.2, 0.2))
    assert prices.served(200, 200, BLOCK_TOKENS) == pytest.approx((0.001, 0.001))  # the last token
    account = Account(prices, BLOCK_TOKENS)
    account.add(160, 200)
    account.add(0, 200)
    assert asdict(account.worth()) == pytest.approx({"mean_ttft_s": 0.12, "saved_s": 0.16})


def test_a_tier_that_is_too_slow_is_worth_nothing_and_never_less() -> None:
    prices = Prices(COMPUTE, 512, LoadCost(5.0, 1e3), TOKEN_BYTES)
    alone_s = prices.computed_s(1000)
    assert prices.served(960, 1000, BLOCK_TOKENS) == (alone_s, alone_s)


def cells(tmp_path: Path, *flags: str | Path) -> Any:
    file = tmp_path / "cells.json"
    arguments = [CONVERSATION, "--policy", "OPT", "--capacity-blocks", "900", *flags, "--json", file]
    done = CliRunner().invoke(build_cli(), ["simulate", *map(str, arguments)])
    assert done.exit_code == 0, done.stderr
    return json.loads(file.read_text())["cells"][0]


@pytest.fixture
def cost_file(tmp_path: Path) -> Path:
    steps = tuple(Step(Work.prefill(0, tokens), 0.002 + tokens * 1e-4) for tokens in (16, 64, 128, 512))
    lines = {"disk": LineState(0.001, 1e9), "redis": LineState(0.01, 1e8)}
    CostFile(tmp_path / "costs", "x").write(KnownCosts(steps, lines))
    (file,) = (tmp_path / "costs").iterdir()
    return file


def test_loads_that_cost_something_save_less(tmp_path: Path) -> None:
    free = cells(tmp_path, "--prefill-tok-s", "10000")
    loaded = cells(tmp_path, "--prefill-tok-s", "10000", "--load", "1GB/s,1ms", "--kv-token-bytes", "128KiB")
    slow = cells(tmp_path, "--prefill-tok-s", "10000", "--load", "1MB/s", "--kv-token-bytes", "128KiB")
    assert free["mean_ttft_s"] < loaded["mean_ttft_s"] < slow["mean_ttft_s"]
    assert free["saved_s"] > loaded["saved_s"] >= slow["saved_s"] >= 0


def test_a_server_s_own_costs_are_taken(tmp_path: Path, cost_file: Path) -> None:
    kv = "--kv-token-bytes", "100KB"
    disk = cells(tmp_path, "--costs", cost_file, "--tier", "disk", *kv)
    redis = cells(tmp_path, "--costs", cost_file, "--tier", "redis", *kv)
    assert 0 < disk["mean_ttft_s"] < redis["mean_ttft_s"]
    assert "worth" not in disk


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--load", "1GB/s"], "prefill_tok_s: how fast are prompts computed?"),
        (["--prefill-tok-s", "9", "--load", "1GB/s"], "kv_token_bytes: how many bytes"),
        (["--prefill-tok-s", "9", "--load", "fast"], "load: fast: a rate is written like"),
        (["--prefill-tok-s", "9", "--kv-token-bytes", "1KiB"], "kv_token_bytes: says nothing without"),
        (["--prefill-tok-s", "9", "--load", "1GB/s", "--kv-token-bytes", "-1"], "kv_token_bytes: -1 is not"),
        (
            ["--prefill-tok-s", "9", "--load", "1GB/s", "--kv-token-bytes", "x"],
            "kv_token_bytes: x: a size is",
        ),
        (["--costs", "/nowhere"], "costs: /nowhere is no file of costs"),
        (
            ["--costs", "COSTS", "--kv-token-bytes", "1"],
            "tier: which tier is simulated? --costs knows loads of disk, re",
        ),
        (["--costs", "COSTS", "--tier", "tape", "--kv-token-bytes", "1"], "tier: which tier is simulated?"),
        (["--prefill-tok-s", "9", "--model", "/nowhere"], "model: "),
    ],
)
def test_costs_that_cannot_be_reckoned_with_are_one_line(
    flags: list[str], message: str, cost_file: Path
) -> None:
    flags = [str(cost_file) if flag == "COSTS" else flag for flag in flags]
    done = CliRunner().invoke(build_cli(), ["simulate", str(CONVERSATION), *flags])
    assert (done.exit_code, message in done.stderr) == (2, True)
    assert done.stderr.splitlines()[-1].startswith("prefixd: ")
