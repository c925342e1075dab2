"""Commands that change what is kept: they show first what would happen, ask, and follow the job."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from api.commands.admin.asking import Asking, confirm, print_sheet
from api.commands.admin.job_sheets import job_sheets, result_sheets
from api.commands.parameters import replacing

INTERRUPTED = 130

_YES = typer.Option("--yes", "-y", help="Do it without asking.")
_DRY = typer.Option("--dry-run", help="Only show what would happen.")
_NO_WAIT = typer.Option(
    "--no-wait", help="Return when it has begun; prefixd admin job ID shows how far it is."
)

YES = Annotated[bool, _YES]
DRY = Annotated[bool, _DRY]
NO_WAIT = Annotated[bool, _NO_WAIT]


def do(
    asking: Asking, path: str, body: Mapping[str, Any], *, dry_run: bool, yes: bool, no_wait: bool
) -> None:
    """Post a change of which there is a dry run: show that, ask, begin, and follow."""
    if dry_run or not yes:
        planned = asking.server.ask("POST", f"/admin/{path}", {**body, "dry_run": True}, wants="num_selected")
        if dry_run:
            asking.show(planned, planned_sheets)
            return
        ask_about(planned)
    begin(asking, "POST", path, {**body, "dry_run": False}, no_wait=no_wait)


def ask_about(planned: Mapping[str, Any]) -> None:
    """Show what would happen, and return once the user agrees."""
    for sheet in planned_sheets(planned, time.time()):
        print_sheet(sheet, err=True)
    confirm("Do it?", yes=False)


def planned_sheets(planned: Mapping[str, Any], _: float) -> list[Any]:
    """Return what a dry run says."""
    return result_sheets(planned, would=True)


def begin(
    asking: Asking,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    query: Mapping[str, Any] | None = None,
    *,
    no_wait: bool,
) -> None:
    """Begin a job; follow it unless told otherwise. Raises ``typer.Exit`` where it does not end well."""
    from api.client.jobs import begun

    finish(asking, begun(asking.server, method, f"/admin/{path}", body, query), no_wait=no_wait)


def finish(asking: Asking, job: Mapping[str, Any], *, no_wait: bool) -> None:
    """Follow a job that has begun, show how it ended, and end as it did."""
    if not no_wait:
        job = follow(asking, job)
    asking.show(job, job_sheets)
    if no_wait:
        typer.echo(f"prefixd: it goes on; prefixd admin job {job['id']} shows how far it is", err=True)
    elif job["state"] != "done" or (job["result"] or {}).get("bad"):
        raise typer.Exit(1)


def follow(asking: Asking, job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a job as it ended; shows on stderr how far it is. Interrupted, it leaves the job alone."""
    from api.client.jobs import followed

    try:
        with _progress(job["kind"]) as tell:
            return followed(asking.server, job, tell)
    except KeyboardInterrupt:
        also = f"prefixd admin cancel {job['id']} ends it"
        typer.echo(f"prefixd: the server goes on with {job['kind']}; {also}", err=True)
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _progress(kind: str) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Give what tells how far a job is: a bar where there is a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(kind, total=None)
        yield lambda job: progress.update(bar, completed=job["done"], total=job["total"])


def _doing(dry_run: bool, yes: bool, no_wait: bool) -> dict[str, bool]:
    return {"dry_run": dry_run, "yes": yes, "no_wait": no_wait}


def asks_first(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--dry-run``, ``--yes`` and ``--no-wait``; it gets them as ``how``."""
    return replacing(
        "how", {"dry_run": (DRY, False), "yes": (YES, False), "no_wait": (NO_WAIT, False)}, _doing
    )(command)
