"""How the demonstration is shown."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from api.demo.scenario import QUESTIONS, TIERS, Row

_COLUMNS = ("prompt", "computed", *TIERS, "TTFT", "clean", "ITL", "equal")

_CAPTION = """\
Prompt tokens by where their keys and values came from; TTFT in seconds, beside
the clean run's (no cache at all); ITL in milliseconds. Evicted: a request in
between has pushed the text off the device tier."""


def table(rows: Sequence[Row]) -> Table:
    """Return the one table: tokens by source, times, and whether the answer is the clean run's."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    shown.caption = _CAPTION
    shown.caption_justify = "left"
    shown.add_column("")
    for name in _COLUMNS:
        shown.add_column(name, justify="right")
    for row in rows:
        shown.add_row(row.label, *_cells(row))
    return shown


def _cells(row: Row) -> list[str]:
    answer = row.answer
    sources = [answer.tokens_by_source.get(source, 0) for source in ("computed", *TIERS)]
    return [
        str(answer.prompt_tokens),
        *(str(tokens) if tokens else "·" for tokens in sources),
        f"{answer.ttft_s:.2f}",
        f"{row.clean.ttft_s:.2f}",
        f"{answer.itl_s * 1000:.0f}",
        "[green]yes[/]" if row.is_equal else "[red]NO[/]",
    ]


def answers(rows: Sequence[Row]) -> str:
    """Return what was asked and answered, a line each."""
    pairs = zip(QUESTIONS, rows, strict=False)
    return "\n".join(f"> {question}\n{' '.join(row.answer.text.split())} ..." for question, row in pairs)


def next_commands(model: Path) -> list[str]:
    """Return the three commands to try next, the user's own model first."""
    prefixd, folder = _own_command(), _for_shell(model)
    return [
        f"{prefixd} serve --model /path/to/your/model",
        f'{prefixd} generate --model {folder} --chat --prompt "What is a cache?"',
        f"{prefixd} bench engine --model {folder}",
    ]


def _for_shell(path: Path) -> str:
    if path.is_relative_to(Path.home()):
        return f"~/{shlex.quote(str(path.relative_to(Path.home())))}"
    return shlex.quote(str(path))


def _own_command() -> str:
    started_as = Path(sys.argv[0])
    is_typed_in_full = started_as.name == "prefixd" and shutil.which("prefixd") is None
    return shlex.quote(str(started_as)) if is_typed_in_full else "prefixd"
