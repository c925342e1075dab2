"""Prefixes as files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from api.commands.admin.asking import Asking, asks_server, confirm
from api.commands.admin.choosing import takes_selection
from api.commands.admin.doing import NO_WAIT, YES, finish
from api.commands.admin.sheets import line, size
from kvstore.errors import ConfigError

_PIECE_BYTES = 1 << 20
_FILE_TYPE = "application/octet-stream"


@asks_server
@takes_selection
def export(
    asking: Asking,
    selection: dict[str, Any],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.", metavar="FILE")],
    yes: YES = False,
) -> None:
    """Write blocks to a file in the format of safetensors, which others can read and import takes back.

    For example:

        prefixd admin export --file system-prompt.txt --chat --out system-prompt.safetensors
    """
    if out.exists():
        confirm(f"{out} is there already. Write over it?", yes=yes)
    unfinished = out.with_name(f"{out.name}.part")
    try:
        with (
            _writing(unfinished) as file,
            asking.server.download("/admin/export", {"selection": selection}) as answer,
        ):
            whole = int(answer.headers.get("Content-Length", 0))
            with _bar("export", whole) as advance:
                for piece in answer.iter_bytes(_PIECE_BYTES):
                    file.write(piece)
                    advance(len(piece))
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)
    written = out.stat().st_size
    asking.show({"file": str(out), "bytes": written}, lambda *_: [line(f"{size(written)} written to {out}")])


@asks_server
def import_(
    asking: Asking,
    file: Annotated[Path, typer.Argument(help="A file that was exported.")],
    no_wait: NO_WAIT = False,
) -> None:
    """Take the blocks of a file in; each is verified before it is visible.

    For example:

        prefixd admin import system-prompt.safetensors
    """
    from api.client.jobs import fresh_key

    with _reading(file) as source, _bar("upload", os.fstat(source.fileno()).st_size) as advance:
        headers = {**fresh_key(), "Content-Type": _FILE_TYPE}
        pieces = _pieces(source, advance)
        job = asking.server.upload("/admin/import", pieces, wants="id", headers=headers)
    finish(asking, job, no_wait=no_wait)


def _pieces(file: BinaryIO, advance: Callable[[int], None]) -> Iterable[bytes]:
    while piece := file.read(_PIECE_BYTES):
        yield piece
        advance(len(piece))


@contextmanager
def _writing(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("wb") as file:
            yield file
    except OSError as error:
        raise ConfigError("out", f"cannot write {path}: {error.strerror}") from None


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise ConfigError("file", f"cannot read {path}: {error.strerror}") from None


@contextmanager
def _bar(what: str, whole: int) -> Iterator[Callable[[int], None]]:
    """Give what tells how many bytes more are through: a bar where there is a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=whole or None)
        yield lambda num: progress.advance(task, num)
