"""A folder that is either there and whole, or not there."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return ``folder``, filled by ``make`` if it is not there yet; may block as long as that takes.

    ``make`` gets an empty sibling folder, which is renamed after its bytes have reached the disk:
    a process that dies on the way leaves no ``folder``. Of several that want it at once, in any
    process, one makes it and the others wait. Raises ``OSError`` when the place cannot be written.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            _make_and_rename(folder, make)
    return folder


def _make_and_rename(folder: Path, make: Callable[[Path], None]) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    # Under the lock, what is there was left by a process that died.
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        make(partial)
        _sync(partial)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The lock ends with the process, however it ends; its file stays, so that all lock the same one.
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
