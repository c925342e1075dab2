"""Runs the demonstration in a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from api.demo.both import NUM_STEPS as BOTH_STEPS
from api.demo.both import Ways, shown, three_ways
from api.demo.report import answers, next_commands, table
from api.demo.scenario import NUM_STEPS, QUESTIONS, Row, faults, play
from api.demo.server import end_of
from api.folders import cache_folder

_Advance = Callable[[str, float], None]


def run_demo(console: Console | None = None) -> bool:
    """Play the demonstration and print its table. Returns whether it showed what it should.

    Blocks for a minute or two, and half a minute more when the model is converted first.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    started_s = time.monotonic()
    with TemporaryDirectory(prefix="prefixd-demo-") as workspace:
        log = Path(workspace, "server.log")
        model = _converted_model(console)
        rows, ways = _played(console, model, Path(workspace), log)
        wrong = faults(rows)
        if not ways.are_equal:
            wrong.append("computed, loaded or both at once: the answer is not the clean run's")
        _show(console, rows, wrong, time.monotonic() - started_s)
        console.print(f"{shown(ways)}\n", markup=False)
        if wrong:
            console.print(end_of(log), markup=False)
    if not wrong:
        _show_next(console, model)
    return not wrong


def _converted_model(console: Console) -> Path:
    with _progress(console) as advance:
        advance("loading torch and transformers", 0.0)
        from engine_adapter.engine.convert import smollm2_folder  # noqa: PLC0415 - slow, so under the bar

        return smollm2_folder(
            cache_folder(), lambda step, share: advance(f"converting the model: {step}", share)
        )


def _played(console: Console, model: Path, workspace: Path, log: Path) -> tuple[list[Row], Ways]:
    num_begun = 0
    with _progress(console) as advance:

        def step(text: str) -> None:
            nonlocal num_begun
            advance(text, num_begun / (NUM_STEPS + BOTH_STEPS))
            num_begun += 1

        rows = play(model, workspace, log, step)
        return rows, three_ways(model, workspace, step)


@contextmanager
def _progress(console: Console) -> Iterator[_Advance]:
    """Show a bar; where nobody watches, a line for each step."""
    if not console.is_terminal:
        yield lambda text, _share: console.print(f"  {text}")
        return
    columns = (SpinnerColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda text, share: bar.update(task, description=text, completed=share)


def _show(console: Console, rows: list[Row], wrong: list[str], took_s: float) -> None:
    console.print(answers(rows), markup=False, soft_wrap=False)
    tokens = rows[0].answer.prompt_tokens
    console.print(
        f"\n{len(QUESTIONS)} prompts of {tokens} tokens, before and after a restart: {took_s:.0f} s"
    )
    console.print(table(rows))
    for fault in wrong:
        console.print(f"[red]{fault}[/]")


def _show_next(console: Console, model: Path) -> None:
    console.print("Every answer is the clean run's, word for word. Try next:")
    for command in next_commands(model):
        console.print(f"  {command}", markup=False)
