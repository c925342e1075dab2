"""``benchmarks/gpu.py`` in miniature on a CPU; its figures mean nothing there, its findings do."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.device import DevicePool
from benchmarks import gpu
from benchmarks.on_gpu.command import main
from benchmarks.on_gpu.equality import exact_answers
from benchmarks.on_gpu.findings import Budget, Findings, Part
from benchmarks.on_gpu.rounded_equality import rounded_answers
from benchmarks.on_gpu.rounding import CleanRun
from benchmarks.on_gpu.run import PARTS, report_of, run_parts
from benchmarks.on_gpu.served import Bench
from benchmarks.on_gpu.sizes import FULL, TINY
from benchmarks.on_gpu.table import table_of
from engine_adapter.engine.events import Completion, TokenLogprobs, Usage

SCRIPT = Path(gpu.__file__)
NEVER = float("inf")
# What an image with torch and transformers may lack.
EXTRAS = (
    "rich",
    "typer",
    "fastapi",
    "uvicorn",
    "pydantic",
    "httpx",
    "prometheus_client",
    "redis",
    "zstandard",
)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(replace(TINY, num_prompts=1), torch.device("cpu"), tmp_path)


@pytest.mark.timeout(300)
def test_everything_runs_in_miniature_and_all_answers_are_equal(tmp_path: Path) -> None:
    """By the script itself, without packages that an image may lack."""
    without = f"import sys, runpy; sys.modules.update(dict.fromkeys({EXTRAS!r}))"
    run = f"sys.argv = sys.argv[1:]; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    report_file = tmp_path / "report.json"
    options = ["--device", "cpu", "--tiny", "--json", str(report_file), "--folder", str(tmp_path)]

    done = subprocess.run(
        [sys.executable, "-c", f"{without}; {run}", str(SCRIPT), *options],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    report = json.loads(report_file.read_text())
    assert set(report) == {"device", "torch", "transformers", "size", "seconds", "parts"}
    assert {name: part["state"] for name, part in report["parts"].items()} == dict.fromkeys(
        ("copies", "exact", "rounded", "attention", "decode", "ttft", "cases", "grid"), "done"
    )
    figures = {name: part["figures"] for name, part in report["parts"].items()}
    assert set(figures["copies"]) == {"layer-first", "block-first", "layout_in_use"}
    assert set(figures["exact"]) == {"wrong", "num_distinct_tokens"}
    assert set(figures["rounded"]) == {"wrong_blocks_seen", "num_wrong", "noise"}
    assert set(figures["attention"]["layer_and_plan_s"]) == {
        "plain", "window", "softcap", "window and softcap",
    }  # fmt: skip
    assert set(figures["decode"]["share_of_limit"]) == {"decode 1", "decode 8"}
    ways = {"computed", "device", "host", "disk", "split"}
    assert {name: set(found["ttft_s"]) for name, found in figures["ttft"].items()} == {
        "200": ways,
        "400": ways,
    }
    assert all(case["holds"] for case in figures["cases"].values())
    itself = figures["grid"]["reload 256 at the disk itself"]
    assert {"measured", "always-load", "always-compute", "best_fixed_split"} <= set(itself["ttft_s"])
    marks = [mark for part in report["parts"].values() for mark in part["marks"]]
    assert all(mark["is_met"] for mark in marks if mark["mark"] == "required")
    assert all(mark["what"] in done.stdout for mark in marks)


def test_nothing_missing_is_guessed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda name: None if name == "xxhash" else object())
    with pytest.raises(SystemExit, match="not installed: xxhash;"):
        gpu.run()


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main("", ["--parts", "copies,speed"])
    assert "speed is no part; these are: copies, exact" in capsys.readouterr().err


def test_all_parts_fit_into_eight_minutes() -> None:
    assert sum(part.budget_s for part in PARTS) < 7.5 * 60


def test_a_part_that_breaks_or_is_wrong_stops_no_other(bench: Bench) -> None:
    def breaks(_bench: Bench, _budget: Budget) -> Findings:
        raise RuntimeError("out of memory")

    def is_wrong(_bench: Bench, _budget: Budget) -> Findings:
        findings = Findings()
        findings.require("answers", holds=False, value="they differ")
        return findings

    def is_slow(_bench: Bench, _budget: Budget) -> Findings:
        findings = Findings()
        findings.mark("speed", 0.5, least=0.9)
        return findings

    parts = [Part("breaks", breaks, 1), Part("wrong", is_wrong, 1), Part("slow", is_slow, 1)]
    outcomes = run_parts(bench, parts, NEVER)

    assert [outcome.state for outcome in outcomes] == ["failed", "failed", "done"]
    report = report_of(bench, outcomes, 3.0)["parts"]
    assert report["breaks"]["error"] == "RuntimeError: out of memory"
    assert report["wrong"]["error"] == "answers: they differ"
    assert report["slow"]["marks"] == [{"what": "speed", "value": "0.50", "mark": ">= 0.9", "is_met": False}]
    assert [line.split() for line in table_of(outcomes).splitlines()][-1] == [
        "speed", ">=", "0.9", "MISSED", "0.50",
    ]  # fmt: skip


def test_a_part_that_could_pass_the_limit_is_skipped_and_a_shorter_one_is_not(bench: Bench) -> None:
    parts = [
        Part(name, lambda _bench, _budget: Findings(), budget_s) for name, budget_s in (("a", 2e9), ("b", 1))
    ]
    outcomes = run_parts(bench, parts, ends_s=1e9)
    assert [(outcome.part.name, outcome.state) for outcome in outcomes] == [("a", "skipped"), ("b", "done")]


def test_a_pool_that_loads_other_numbers_is_found_in_fp32(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DevicePool, "write_block", halved(DevicePool.write_block))
    findings = exact_answers(bench, Budget(NEVER))
    assert "fp32 tokens equal from disk: tokens differ" in findings.faults
    assert "fp32 tokens equal from host, the first 25% computed: tokens differ" in findings.faults
    assert not [fault for fault in findings.faults if "device" in fault or "any cache" in fault]


def test_a_pool_that_loads_other_numbers_is_found_in_bf16(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DevicePool, "write_block", halved(DevicePool.write_block))
    findings = rounded_answers(bench, Budget(NEVER))
    assert findings.figures["num_wrong"]["from disk"] > 0
    assert findings.figures["num_wrong"]["from device"] == 0


def halved(write_block: Any) -> Any:
    """Return ``write_block`` with half of every block lost."""

    def write(pool: DevicePool, block: int, data: memoryview) -> Any:
        half = len(data) // 2
        return write_block(pool, block, memoryview(bytearray(data[:half]) + bytearray(len(data) - half)))

    return write


@pytest.mark.parametrize(("margin", "num_wrong"), [(0.5, 1), (0.1, 0)])
def test_another_token_passes_only_where_rounding_may_choose_it(margin: float, num_wrong: int) -> None:
    clean = CleanRun([5], (told(7, margin), told(8, 1.0)))
    answers = [answer(told(9, margin)), answer(told(8, 1.0))]
    assert clean.num_wrong(answers, noise=0.1) == num_wrong


def told(token: int, margin: float) -> TokenLogprobs:
    return TokenLogprobs(token, -0.1, 1, ((token, -0.1), (token + 100, -0.1 - margin)))


def answer(one: TokenLogprobs) -> Completion:
    return Completion("", (one.token,), "length", Usage(1, 1, {}), logprobs=(one,))


def test_the_full_form_has_the_shape_of_llama_8b_and_fits_its_machine() -> None:
    shape = FULL.served
    attention = shape.hidden * (2 * shape.hidden + 2 * shape.kv_heads * shape.head_dim)
    weights = (
        shape.layers * (attention + 3 * shape.hidden * shape.intermediate) + 2 * shape.vocab * shape.hidden
    )
    assert weights == pytest.approx(8.03e9, rel=0.01)
    assert shape.kv_token_bytes == 128 << 10
    assert 2 * weights + FULL.pool_bytes < 60e9
    longest = max(FULL.ttft_tokens)
    assert longest * shape.kv_token_bytes <= min(FULL.host_bytes, FULL.disk_bytes)
    decoding = max(FULL.decode_sequences) * (FULL.decode_context + 2 * FULL.decode_tokens)
    assert decoding * shape.kv_token_bytes < FULL.pool_bytes
