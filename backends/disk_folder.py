"""The disk tier's folder: where things lie in it, and the lock that makes it one process's.

::

    <path>/v1/lock                          flock; holds the owner's process id
             /journal                       which blocks there are, in order of use
             /blocks/<2 hex>/<key in hex>   a frame: header, zeros up to 4096, payload
             /namespaces/<digest>.json      readable manifests
             /tmp/                          files being written; renamed when whole
    <path>/<anything else>                  another format version's, left alone
"""

from __future__ import annotations

import fcntl
import os
from itertools import count
from pathlib import Path

from kvstore.errors import BackendError, TierLockedError

NAME = "disk"
FORMAT = "v1"


class DiskFolder:
    """The locked folder at ``path``; creates what is missing, for its owner's eyes alone.

    Raises ``TierLockedError``, naming the holder's process, when it is in use, and
    ``BackendError`` when it cannot be made, read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        root = path / FORMAT
        self.blocks = root / "blocks"
        self.namespaces = root / "namespaces"
        self.journal = root / "journal"
        self.tmp = root / "tmp"
        self._blocks = str(self.blocks)
        self._numbers = count()
        try:
            for folder in (
                *reversed(path.absolute().parents),
                path,
                root,
                self.blocks,
                self.namespaces,
                self.tmp,
            ):
                folder.mkdir(mode=0o700, exist_ok=True)
            self._lock = _lock(root / "lock")
        except OSError as error:
            raise BackendError(NAME, "open", f"{path} cannot be used: {error.strerror}") from error
        self._writer = f"{os.getpid()}-{os.urandom(4).hex()}-"

    def block(self, key: bytes) -> str:
        """Return where the frame of ``key`` lies; plain text, which every read is quicker with."""
        name = key.hex()
        return f"{self._blocks}/{name[:2]}/{name}"

    def temporary(self) -> Path:
        """Return a new name in ``tmp``, never used before."""
        return self.tmp / f"{self._writer}{next(self._numbers)}"

    def is_ours(self, temporary: Path) -> bool:
        """Tell whether a file in ``tmp`` was written through this very object."""
        return temporary.name.startswith(self._writer)

    def publish(self, temporary: Path, path: Path) -> None:
        """Move a whole file to its place in one step, replacing what was there."""
        try:
            temporary.rename(path)
        except FileNotFoundError:  # the first block of its subfolder
            path.parent.mkdir(mode=0o700, exist_ok=True)
            temporary.rename(path)

    def unlock(self) -> None:
        """Let another process have the folder; idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _lock(path: Path) -> int:
    """Take the lock and return its descriptor, which holds it until closed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode(errors="replace") or "unknown"
        os.close(descriptor)
        reason = f"{path.parent.parent} is in use by process {holder}: stop it or choose another folder"
        raise TierLockedError(NAME, "open", reason) from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
