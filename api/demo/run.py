"""Runs the demonstration in a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from api.demo.report import next_commands, table
from api.demo.scenario import NUM_STEPS, QUESTIONS, Row, Step, faults, play
from api.demo.server import end_of
from api.folders import cache_folder


def run_demo(console: Console | None = None) -> bool:
    """Play the demonstration and print its table. Returns whether it showed what it should.

    Blocks for about a minute, and half a minute more when the model is converted first.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    started_s = time.monotonic()
    with TemporaryDirectory(prefix="prefixd-demo-") as workspace:
        log = Path(workspace, "server.log")
        model = _converted_model(console)
        with _steps(console) as step:
            rows = play(model, Path(workspace), log, step)
        wrong = faults(rows)
        _show(console, rows, wrong, time.monotonic() - started_s)
        if wrong:
            console.print(end_of(log), markup=False)
    if not wrong:
        _show_next(console, model)
    return not wrong


def _converted_model(console: Console) -> Path:
    with _bar(console) as bar:
        task = bar.add_task("loading torch and transformers", total=1)
        from engine_adapter.engine.convert import smollm2_folder  # noqa: PLC0415 - slow, so under the bar

        return smollm2_folder(
            cache_folder(),
            lambda step, share: bar.update(task, description=f"model: {step}", completed=share),
        )


@contextmanager
def _steps(console: Console) -> Iterator[Step]:
    with _bar(console) as bar:
        task = bar.add_task("", total=NUM_STEPS, completed=-1)
        yield lambda text: bar.update(task, description=text, advance=1)


def _bar(console: Console) -> Progress:
    columns = (SpinnerColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=console, transient=True)


def _show(console: Console, rows: list[Row], wrong: list[str], took_s: float) -> None:
    console.print(
        f"One text of {rows[0].answer.prompt_tokens} tokens, {len(QUESTIONS)} questions, {took_s:.0f} s."
    )
    console.print(table(rows))
    for fault in wrong:
        console.print(f"[red]{fault}[/]")


def _show_next(console: Console, model: Path) -> None:
    console.print("Every answer is the clean run's, word for word. Try next:")
    for command in next_commands(model):
        console.print(f"  {command}", markup=False)
