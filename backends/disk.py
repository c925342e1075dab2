"""The disk tier: a file per block, whole or not there, and a journal that makes restarts quick."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from threading import Condition, Lock
from typing import ParamSpec, TypeVar

from backends.disk_folder import NAME, DiskFolder
from backends.disk_frames import FrameFiles
from backends.disk_index import DiskIndex, file_bytes
from backends.disk_journal import Entry
from backends.disk_sweep import Sweep
from backends.disk_turns import Turns
from kvstore.errors import BackendError, FrameError, OutOfSpaceError
from kvstore.frame import Header, identify
from kvstore.namespace import MOST_MANIFEST_BYTES
from kvstore.seams import BackendStats, HeaderChange

P = ParamSpec("P")
R = TypeVar("R")

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def _reporting(operation: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Say in the project's terms what the operating system reports."""

    def decorate(call: Callable[P, R]) -> Callable[P, R]:
        @wraps(call)
        def reporting(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return call(*args, **kwargs)
            except OSError as error:
                kind = OutOfSpaceError if error.errno in _NO_ROOM else BackendError
                raise kind(NAME, operation, error.strerror or str(error)) from error

        return reporting

    return decorate


class DiskBackend:
    """Keeps frames in files below ``path``; see ``disk_folder`` for the layout.

    A frame is written to a temporary file and renamed, without fsync: a crash may lose blocks and
    a power failure may leave a wrong one, which its checksum tells. The folder belongs to one
    process. Raises ``TierLockedError`` when that is another, ``BackendError`` when the folder
    cannot be used.
    """

    @_reporting("open")
    def __init__(self, path: Path | str) -> None:
        self._folder = DiskFolder(Path(path))
        try:
            self._files = FrameFiles(self._folder.temporary())
            self._index = DiskIndex(self._folder)
        except OSError:
            self._folder.unlock()
            raise
        self._turns = Turns()
        self._sweep = Sweep(self._folder, self._index)
        self._calls = _Calls()

    @_reporting("get")
    def get_into(self, key: bytes, header: memoryview, payload: memoryview) -> int | None:
        with self._calls as is_open:
            entry = self._index.use(key) if is_open else None
            if entry is None or entry.payload_bytes > len(payload):
                return None
            try:
                with self._turns.reading(key):
                    path, out = self._folder.block(key), payload[: entry.payload_bytes]
                    is_whole = self._files.read(path, header, out)
            except FileNotFoundError:
                self._index.missing(key, entry)
                return None
            return entry.payload_bytes if is_whole else None

    @_reporting("put")
    def put(self, key: bytes, header: memoryview, payload: memoryview) -> None:
        with self._calls as is_open:
            if not is_open:
                raise BackendError(NAME, "put", "the backend is closed")
            temporary = self._folder.temporary()
            try:
                self._files.write(temporary, header, payload)
                self._index.arrive(key)
                self._folder.publish(temporary, Path(self._folder.block(key)))
            except BaseException:
                self._abandon(temporary, key)
                raise
            self._index.add(key, Entry(bytes(header), len(payload)))

    @_reporting("amend")
    def amend(self, key: bytes, change: HeaderChange) -> bool:
        """Rewrite the file's header, then the journal's: a crash between them leaves the older end there."""
        with self._calls as is_open:
            entry = self._index.entry(key) if is_open else None
            if entry is None:
                return False

            def amended(packed: bytes) -> bytes | None:
                with suppress(FrameError):
                    header = Header.unpack(packed)
                    if (header.key, header.stored_bytes) == (key, entry.payload_bytes):
                        return change(header).pack()
                return None

            try:
                with self._turns.rewriting(key):
                    header = self._files.rewrite_header(self._folder.block(key), amended)
            except FileNotFoundError:
                self._index.missing(key, entry)
                return False
            return header is not None and self._index.amend(key, entry, header)

    @_reporting("delete")
    def delete(self, key: bytes) -> None:
        with self._calls as is_open:
            if is_open:
                self._remove(key)

    def footprint(self, payload_bytes: int) -> int:
        return file_bytes(payload_bytes)

    def recover(self) -> Iterable[Header]:
        for key, entry in self._index.entries():
            with suppress(FrameError):  # no frame of any version: the store could do nothing with it
                yield identify(entry.header, key, entry.payload_bytes)

    @_reporting("discover")
    def discover(self, found: Callable[[Header], None], stop: Callable[[], bool]) -> None:
        """Sweep the folder: adopt blocks the journal does not know, remove what is broken."""
        with self._calls as is_open:
            if is_open:
                self._sweep.run(found, lambda: self._calls.closed or stop())

    @_reporting("put_manifest")
    def put_manifest(self, namespace: bytes, manifest: str) -> None:
        with self._calls as is_open:
            if not is_open:
                raise BackendError(NAME, "put_manifest", "the backend is closed")
            temporary = self._folder.temporary()
            try:
                temporary.write_text(manifest, encoding="utf-8")
                self._folder.publish(temporary, self._folder.namespaces / f"{namespace.hex()}.json")
            except OSError:
                temporary.unlink(missing_ok=True)
                raise

    @_reporting("manifests")
    def manifests(self) -> Iterable[str]:
        """Yield each that can be read and is of a sane size."""
        paths = sorted(self._folder.namespaces.iterdir())
        return filter(None, map(_manifest_in, paths))

    def stats(self) -> BackendStats:
        facts = {
            "path": str(self._folder.path),
            "io": "direct" if self._files.direct else "buffered",
            "num_blocks": str(len(self._index)),
            "num_files_not_removed": str(self._index.num_leaving),
            "num_journal_records_lost": str(self._index.num_lost_records),
            "foreign_bytes": str(self._sweep.foreign_bytes),
        }
        return BackendStats(self._index.occupied_bytes, facts)

    def close(self) -> None:
        if self._calls.close():
            try:
                self._index.close()
            finally:
                self._folder.unlock()

    def check(self) -> None:
        """Raise ``InvariantError`` when the bookkeeping contradicts itself."""
        self._index.check()

    def _remove(self, key: bytes) -> None:
        """Remove a file; raises ``OSError`` when it stays, but the key is not visible either way."""
        if self._index.leave(key):
            Path(self._folder.block(key)).unlink(missing_ok=True)
            self._index.gone(key)

    def _abandon(self, temporary: Path, key: bytes) -> None:
        """After a failed put: remove the half file, and what was there under ``key`` before."""
        with suppress(OSError):
            temporary.unlink()
        with suppress(OSError):
            self._remove(key)


def _manifest_in(path: Path) -> str | None:
    """Return the manifest that ``path`` holds, if it holds one."""
    with suppress(OSError, UnicodeDecodeError):
        if path.suffix == ".json" and path.stat().st_size <= MOST_MANIFEST_BYTES:
            return path.read_text(encoding="utf-8")
    return None


class _Calls:
    """Counts the calls under way, for ``close`` to wait for; entering tells whether it is open."""

    def __init__(self) -> None:
        self._num_under_way = 0
        self._idle = Condition(Lock())
        self.closed = False

    def __enter__(self) -> bool:
        with self._idle:
            self._num_under_way += 1
            return not self.closed

    def __exit__(self, *_: object) -> None:
        with self._idle:
            self._num_under_way -= 1
            if not self._num_under_way:
                self._idle.notify_all()

    def close(self) -> bool:
        """Refuse new calls and wait for those under way; ``False`` when that was done before."""
        with self._idle:
            is_first = not self.closed
            self.closed = True
            self._idle.wait_for(lambda: not self._num_under_way)
            return is_first
