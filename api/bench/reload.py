"""``prefixd bench reload``: measured costs against fixed rules and fixed splits, on a tier of every speed.

A prompt that is stored on a throttled disk is asked for again and again, by one policy after the other.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from api.bench.reload_marks import Findings, report_of
from api.bench.reload_plan import (
    FULL_CELLS,
    LEAST_REQUESTS,
    QUICK_CELLS,
    Cell,
    Known,
    arms_of,
    predicted_s,
    rate_of,
    rounds_of,
    runs_of,
)
from api.bench.reload_report import cell_name, plan_lines, plan_told, result_table
from api.bench.reload_runs import Runner, running
from api.bench.reload_statistics import CellSamples
from engine_adapter.serving_config import ServingConfig

_FULL_S = 40 * 60
_QUICK_S = 52
_QUICK_DEADLINE_S = 5.0
_QUICK_MOST_ROUNDS = 6
_QUICK_STEPS, _STEPS = (0,), (-1, 0, 1)


@dataclass
class ReloadBench:
    """Measures one model in all cells; ``is_told`` prints a line for each run of measured costs."""

    config: ServingConfig
    folder: Path
    console: Console
    is_quick: bool = False
    is_told: bool = False

    def run(self) -> dict[str, Any]:
        """Measure, print plan, table and marks, and return the report; takes a minute, or most of an hour."""
        began_s = time.monotonic()
        cells = QUICK_CELLS if self.is_quick else FULL_CELLS
        config = self.config
        if self.is_quick:
            config = replace(config, load_deadline_s=min(config.load_deadline_s, _QUICK_DEADLINE_S))
        with running(config, self.folder) as runner:
            known = self._known(runner, cells, config.load_deadline_s)
            budget_s = (_QUICK_S if self.is_quick else _FULL_S) - (time.monotonic() - began_s)
            if self.is_quick:
                rounds = rounds_of(cells, known, budget_s, most_rounds=_QUICK_MOST_ROUNDS)
            else:
                rounds = rounds_of(cells, known, budget_s, LEAST_REQUESTS)
            for line in plan_lines(rounds, known):
                self.console.print(line, highlight=False)
            findings = self._measure(runner, rounds, known)
            break_even = {
                str(tokens): runner.prompt_bytes(tokens) / took_s
                for tokens, took_s in known.compute_s.items()
            }
        self.console.print(result_table(findings))
        return {
            "break_even_bytes_per_s": break_even[max(break_even, key=int)],
            "break_even_bytes_per_s_by_prompt_tokens": break_even,
            "load_deadline_s": config.load_deadline_s,
            **report_of(findings),
            "took_s": time.monotonic() - began_s,
        }

    def _known(self, runner: Runner, cells: tuple[Cell, ...], deadline_s: float) -> Known:
        compute_s: dict[int, float] = {}
        unthrottled: dict[int, float] = {}
        for tokens in sorted({cell.prompt_tokens for cell in cells}):
            self.console.print(f"storing and computing prompts of {tokens} tokens", highlight=False)
            num = max(cell.concurrency for cell in cells if cell.prompt_tokens == tokens)
            runner.prepare(tokens, num)
            compute_s[tokens] = runner.compute_s(tokens)
            break_even = runner.prompt_bytes(tokens) / compute_s[tokens]
            unthrottled[tokens] = runner.unthrottled_bytes_per_s(tokens) / break_even
        steps = _QUICK_STEPS if self.is_quick else _STEPS
        return Known(compute_s, unthrottled, deadline_s, steps)

    def _measure(self, runner: Runner, rounds: Mapping[Cell, int], known: Known) -> Findings:
        dice = random.Random(2026)  # noqa: S311  not a secret
        found: list[CellSamples] = []
        are_equal = True
        columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task("", total=_total_s(rounds, known))
            for cell, num_rounds in rounds.items():
                samples, is_equal = self._cell(runner, cell, num_rounds, known, dice, (progress, task))
                found.append(samples)
                are_equal &= is_equal
        return Findings(found, are_equal)

    def _cell(
        self,
        runner: Runner,
        cell: Cell,
        num_rounds: int,
        known: Known,
        dice: random.Random,
        shown: tuple[Progress, TaskID],
    ) -> tuple[CellSamples, bool]:
        if not self.is_quick:  # computing may have become faster or slower since
            fresh_s = runner.compute_s(cell.prompt_tokens)
            known = replace(known, compute_s={**known.compute_s, cell.prompt_tokens: fresh_s})
        break_even = runner.prompt_bytes(cell.prompt_tokens) / known.compute_s[cell.prompt_tokens]
        fixed = frozenset(arm.name for arm in arms_of(cell, known) if arm.computed_share is not None)
        samples, are_equal = CellSamples(cell, rate_of(cell, known), break_even, fixed), True
        progress, task = shown
        progress.update(task, description=cell_name(cell))
        runner.warm_up(cell, known)
        for number, arm in runs_of(cell, known, num_rounds, dice):
            outcome = runner.measure(cell, arm, known)
            samples.add(arm.name, replace(outcome.sample, round=number))
            are_equal &= outcome.is_equal
            progress.advance(task, predicted_s(cell, arm, known))
            if self.is_told and arm.name == "measured":
                for plan in outcome.plans:
                    progress.console.print(plan_told(cell, plan, outcome.sample), highlight=False)
        return samples, are_equal


def _total_s(rounds: Mapping[Cell, int], known: Known) -> float:
    dice = random.Random(0)  # noqa: S311  not a secret
    return sum(
        predicted_s(cell, arm, known)
        for cell, num in rounds.items()
        for _, arm in runs_of(cell, known, num, dice)
    )
