"""Walks a disk tier's folder for what its journal does not tell."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from backends.disk_folder import FORMAT, DiskFolder
from backends.disk_frames import PAGE_BYTES
from backends.disk_index import DiskIndex
from backends.disk_journal import Entry
from kvstore.errors import FrameError
from kvstore.frame import HEADER_BYTES, Header, identify
from kvstore.keys import KEY_BYTES


class Sweep:
    """One pass over a folder; ``foreign_bytes`` grows by the files that are no blocks of this folder format.

    Sound blocks, and those of other frame versions, are added to the index; leftovers of interrupted
    writes and broken frames are removed, and nothing else is touched. A file that vanishes or cannot
    be removed is passed over.
    """

    def __init__(self, folder: DiskFolder, index: DiskIndex) -> None:
        self._folder = folder
        self._index = index
        self.foreign_bytes = 0

    def run(self, found: Callable[[Header], None], stop: Callable[[], bool]) -> None:
        """Call ``found`` for each block that is new to the index; returns early when ``stop()``."""
        self.foreign_bytes = 0
        for path in _files(self._folder.tmp):
            if not self._folder.is_ours(path):
                _remove(path)
        for path in _files(self._folder.blocks):
            if stop():
                return
            with suppress(OSError):
                self._look_at(path, found)
        others = [path for path in self._folder.path.iterdir() if path.name != FORMAT]
        self.foreign_bytes += sum(_size(path) for other in others for path in _files(other))

    def _look_at(self, path: Path, found: Callable[[Header], None]) -> None:
        key = _key_of(path)
        if key and self._index.is_known(key):
            return
        if key is None:
            self.foreign_bytes += _size(path)
            return
        packed, payload_bytes = _first_bytes(path), max(0, _size(path) - PAGE_BYTES)
        try:
            header = identify(packed, key, payload_bytes)
        except FrameError:
            _remove(path)
            return
        if (header.key, header.stored_bytes) != (key, payload_bytes):
            _remove(path)
        elif self._index.adopt(key, Entry(packed, payload_bytes)):
            found(header)


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_file():
        yield folder
    for parent, _, names in os.walk(folder):
        for name in names:
            yield Path(parent, name)


def _key_of(path: Path) -> bytes | None:
    """Return the key that a block's file is named after, ``None`` for any other name."""
    try:
        key = bytes.fromhex(path.name)
    except ValueError:
        return None
    return key if len(key) == KEY_BYTES and path.name == key.hex() else None


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEADER_BYTES)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
