"""Runs the parts one after the other, each within its time, and tells what they found."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import transformers

from benchmarks.on_gpu.attention import attention_backends
from benchmarks.on_gpu.cases import cases_under_load
from benchmarks.on_gpu.copies import block_copies
from benchmarks.on_gpu.decoding import decode_steps
from benchmarks.on_gpu.equality import exact_answers
from benchmarks.on_gpu.findings import Budget, Findings, Part
from benchmarks.on_gpu.first_tokens import first_tokens
from benchmarks.on_gpu.grid import reload_grid
from benchmarks.on_gpu.rounded_equality import rounded_answers
from benchmarks.on_gpu.served import Bench

PARTS = (
    Part("copies", block_copies, 20),
    Part("exact", exact_answers, 60),
    Part("rounded", rounded_answers, 70),
    Part("attention", attention_backends, 60),
    Part("decode", decode_steps, 30),
    Part("ttft", first_tokens, 80),
    Part("cases", cases_under_load, 45),
    Part("grid", reload_grid, 75),
)
"""In the order they are run: what is wanted most comes first. All of them take at most 440 s."""


@dataclass
class Outcome:
    """What became of one part: ``done``, ``failed`` (``error`` says why) or ``skipped``."""

    part: Part
    state: str
    seconds: float = 0.0
    error: str = ""
    findings: Findings = field(default_factory=Findings)

    def report(self) -> dict[str, Any]:
        """Return the part as JSON."""
        marks = [asdict(row) for row in self.findings.rows if row.is_met is not None]
        return {
            "state": self.state,
            "seconds": self.seconds,
            "budget_s": self.part.budget_s,
            "error": self.error,
            "marks": marks,
            "figures": self.findings.figures,
        }


def run_parts(
    bench: Bench,
    parts: Sequence[Part],
    ends_s: float,
    hear: Callable[[Outcome], None] = lambda _outcome: None,
) -> list[Outcome]:
    """Run ``parts``; one that could pass ``ends_s`` (monotonic) is skipped, one that fails stops no other."""
    outcomes: list[Outcome] = []
    for part in parts:
        if time.monotonic() + part.budget_s > ends_s:
            outcomes.append(Outcome(part, "skipped", error="it could pass the limit of --minutes"))
        else:
            outcomes.append(_run(bench, part))
        hear(outcomes[-1])
    return outcomes


def report_of(bench: Bench, outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    """Return everything as JSON."""
    device = torch.cuda.get_device_name() if bench.device.type == "cuda" else bench.device.type
    return {
        "device": device,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "size": asdict(bench.size),
        "seconds": seconds,
        "parts": {outcome.part.name: outcome.report() for outcome in outcomes},
    }


def _run(bench: Bench, part: Part) -> Outcome:
    began_s = time.monotonic()
    outcome = Outcome(part, "done")
    try:
        outcome.findings = part.measure(bench, Budget(began_s + part.budget_s))
    except Exception as error:  # noqa: BLE001 - whatever it is, the other parts are to be run
        outcome.state, outcome.error = "failed", "".join(traceback.format_exception_only(error)).strip()
        traceback.print_exception(error)
    if outcome.findings.faults:
        outcome.state, outcome.error = "failed", "; ".join(outcome.findings.faults)
    _release_memory(bench)
    outcome.seconds = time.monotonic() - began_s
    return outcome


def _release_memory(bench: Bench) -> None:
    gc.collect()
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()
