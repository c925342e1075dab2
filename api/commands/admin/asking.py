"""What every command of the administration has: a server to ask, and two forms to answer in."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.commands.admin.sheets import Sheet
from api.commands.parameters import given, replacing

if TYPE_CHECKING:  # it takes long to import
    from api.client.server import Server

USAGE_ERROR = 2
_PANEL = "The server"
_URL = typer.Option(
    help="Where it answers; also PREFIXD_URL [default: host and port of the settings].",
    metavar="URL",
    rich_help_panel=_PANEL,
)
_TOKEN_FILE = typer.Option(
    help="File with the token to send; also PREFIXD_TOKEN holds one.", metavar="FILE", rich_help_panel=_PANEL
)
_JSON = typer.Option("--json", help="Print the server's answer as JSON.")

Render = Callable[[Mapping[str, Any], float], list[Sheet]]


@dataclass(frozen=True)
class Asking:
    """The server that a command asks, and how it shows what is answered."""

    server: Server
    as_json: bool

    def get(self, path: str, wants: str = "data", **query: Any) -> dict[str, Any]:
        """Return what the server answers; of ``query`` what is not ``None`` is sent."""
        return self.server.ask("GET", f"/admin/{path}", wants=wants, query=given(query))

    def listed(self, path: str, limit: int, **query: Any) -> dict[str, Any]:
        """Return a list's first ``limit`` entries (0: all)."""
        return self.server.listed(f"/admin/{path}", limit, given(query))

    def send(
        self, method: str, path: str, wants: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Have the server change something that is soon done; returns what it answers."""
        return self.server.ask(method, f"/admin/{path}", body, wants=wants)

    def show(self, answer: Mapping[str, Any], render: Render) -> None:
        """Print an answer, as JSON or as ``render`` shows it."""
        if self.as_json:
            typer.echo(json.dumps(answer, indent=2))
            return
        for sheet in render(answer, time.time()):
            print_sheet(sheet)


def asks_server(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the flags that name a server, and ``--json``; it gets them as ``asking``."""
    flags = {
        "url": Annotated[str | None, _URL],
        "token_file": Annotated[Path | None, _TOKEN_FILE],
        "as_json": (Annotated[bool, _JSON], False),
    }
    return replacing("asking", flags, _asking)(command)


def in_path(part: str) -> str:
    """Return what a user has named as one part of a path."""
    from urllib.parse import quote

    return quote(part, safe="")


def confirm(question: str, *, yes: bool) -> None:
    """Return once the user agrees. Raises ``typer.Exit`` where not, or where nobody can be asked."""
    if yes:
        return
    if not sys.stdin.isatty():
        typer.echo(
            f"prefixd: {question} Nothing was done; give --yes to have it done without being asked", err=True
        )
        raise typer.Exit(USAGE_ERROR)
    if not typer.confirm(question, err=True):
        typer.echo("prefixd: nothing was done", err=True)
        raise typer.Exit(1)


def print_sheet(sheet: Sheet, *, err: bool = False) -> None:
    """Print one table or line; as wide as it is where no terminal shows it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(stderr=err, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 1000
    if sheet.title:
        console.print(Text(sheet.title, style="bold"))
    if not sheet.columns:
        return
    table = Table(box=None, pad_edge=False, show_header=any(sheet.columns), header_style="dim")
    for column in sheet.columns:
        name = column.lstrip(">")
        table.add_column(Text(name), justify="right" if column.startswith(">") else "left", overflow="fold")
    for row in sheet.rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def _asking(url: str | None, token_file: Path | None, as_json: bool) -> Asking:
    from api.client.address import server_of

    return Asking(server_of(url, token_file, os.environ), as_json)
