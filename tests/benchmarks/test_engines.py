"""Engines compared: who does better in which dtype, ratios within a round, and the talk with a side."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.engines import GENERATE, OURS, VLLM, measure
from benchmarks.sides.process import REPOSITORY, Side

HITS = {"device": 0.02, "host": 0.04, "disk": 0.09}


class FakeSide(Side):
    """An engine that needs the same time every time."""

    def __init__(
        self, name: str, dtype: str, prefill_s: float, token_s: float, hits: dict[str, float]
    ) -> None:
        self.name, self.dtype = name, dtype
        self._prefill_s, self._token_s, self._hits = prefill_s, token_s, hits

    def ask(self, do: str, **arguments: Any) -> Any:
        if do == "answer":
            return self._prefill_s + (arguments["max_tokens"] - 1) * self._token_s
        return {"hits": self._hits, "gaps": [0.05] * 99 + [0.08] * 2, "overhead": 0.002}[do]


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    sides = [
        FakeSide(OURS, "float32", 2.0, 0.04, HITS),
        FakeSide(OURS, "bfloat16", 1.0, 0.05, HITS),
        FakeSide(VLLM, "bfloat16", 1.5, 0.04, {"device": 0.1}),
        FakeSide(VLLM, "float32", 3.0, 0.08, {"device": 0.2}),
        FakeSide(GENERATE, "float32", 1.0, 0.08, {}),
    ]
    return measure(sides, 2)


def mark(report: dict[str, Any], figure: str, other: str = "") -> dict[str, Any]:
    [found] = [one for one in report["marks"] if one["figure"] == figure and other in one.get("other", "")]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("figure", "other", "dtype", "ratio", "is_met"),
    [
        ("prefill_tok_s", VLLM, "bfloat16", 1.5, True),
        ("prefill_tok_s", GENERATE, "bfloat16", 1.0, True),
        ("decode_1_tok_s", VLLM, "float32", 1.0, True),
        ("decode_8_tok_s", GENERATE, "float32", 2.0, True),
        ("ttft_hit_device_s", VLLM, "float32", 0.2, True),
        ("ttft_hit_host_s", VLLM, "float32", 0.4, True),
        ("ttft_hit_disk_s", VLLM, "float32", 0.9, False),
    ],
)
def test_each_side_is_taken_in_its_better_dtype(
    report: dict[str, Any], figure: str, other: str, dtype: str, ratio: float, is_met: bool
) -> None:
    found = mark(report, figure, other)
    assert found["dtype"] == dtype
    assert found["ratio"] == pytest.approx(ratio)
    assert found["met"] is is_met


def test_the_first_round_only_warms_up() -> None:
    class ColdSide(FakeSide):
        """An engine that compiles while it answers for the first time."""

        warm_up_s = 60.0

        def ask(self, do: str, **arguments: Any) -> Any:
            took = super().ask(do, **arguments)
            if do == "answer":
                took, self.warm_up_s = took + self.warm_up_s, 0.0
            return took

    report = measure([ColdSide(OURS, "float32", 2.0, 0.04, HITS)], 1)
    assert report["figures"]["prefixd float32"]["prefill_tok_s"] == pytest.approx(1000)


def test_what_is_ours_alone_has_a_bound_of_its_own(report: dict[str, Any]) -> None:
    assert mark(report, "itl_p99_by_median_in_prefill")["ours"] == pytest.approx(1.6)
    assert not mark(report, "overhead_of_a_step_s")["met"]


def test_a_side_answers_line_by_line_whatever_its_engine_prints() -> None:
    script = (
        "from benchmarks.sides.protocol import serve\n"
        "def load():\n"
        "    print('noise')\n"
        "    return {'add': lambda a, b: a + b}\n"
        "serve(load)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        side = Side(OURS, "float32", process)
        assert side.result() == "ready"
        assert side.ask("add", a=2, b=json.loads("3")) == 5
        assert side.ask("add", a=[1], b=[2]) == [1, 2]
        out, err = process.communicate()
    assert (out, err, process.returncode) == ("", "noise\n", 0)
