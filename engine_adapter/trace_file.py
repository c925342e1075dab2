"""A file of the requests that were served, for ``prefixd simulate``: by digests alone, and bounded."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from kvstore.errors import ConfigError, one_line
from kvstore.served import ServedPrompt

_log = logging.getLogger(__name__)

FORM = "prefixd-trace"
VERSION = 1
_BEGINNING = f'{{"form": "{FORM}"'.encode()
# A block is told by its digest after those before it: only those that share a parent must differ.
_BLOCK_DIGEST_BYTES = 6
_NAME_DIGEST_BYTES = 9
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class RecordingStatus:
    """How far a recording has come. ``num_left_out`` requests were too long for it; ``trouble`` ended it."""

    file: Path
    num_recorded: int
    num_left_out: int
    trouble: str


class TraceFile:
    """Appends requests to ``path``, one JSON object a line behind a header line. For one thread.

    Keys, sessions and tenants are named by digests under a secret of the file, which is kept in memory alone:
    equal ones are equal within the file, and nobody can test a guess. A file that has come to half of
    ``most_bytes`` is renamed (``.1`` behind its name, in place of an older one) and a new one begun; so is
    one that is there at the start. What cannot be written ends the recording, and is told. Raises
    ``ConfigError`` when it cannot be begun, or would replace what is no such trace.
    """

    def __init__(
        self, path: Path, most_bytes: int, block_tokens: int, default_ttl_s: float | None = None
    ) -> None:
        self._path = path
        self._older = _older(path)
        self._most_bytes = most_bytes // 2
        header = {
            "form": FORM, "version": VERSION, "block_tokens": block_tokens, "default_ttl_s": default_ttl_s,
        }  # fmt: skip
        self._header = _line(header)
        self._num_recorded = self._num_left_out = self._num_bytes = 0
        self._trouble = ""
        self._secret = b""
        try:
            require_replaceable(path)
            self._file: BinaryIO | None = self._begin()
        except OSError as error:
            reason = f"{path} cannot be written: {error.strerror or one_line(error)}"
            raise ConfigError("record_trace", reason) from error

    @property
    def status(self) -> RecordingStatus:
        """How far it has come; from any thread."""
        return RecordingStatus(self._path, self._num_recorded, self._num_left_out, self._trouble)

    def write(self, served: ServedPrompt) -> None:
        """Append one request; it is there for others after ``flush``."""
        if self._file is None:
            return
        line = _line(self._facts(served))
        if len(self._header) + len(line) > self._most_bytes:
            self._num_left_out += 1
            return
        try:
            if self._num_bytes + len(line) > self._most_bytes:
                self._file.close()
                self._file = self._begin()
            self._file.write(line)
        except OSError as error:
            self._fail(error)
            return
        self._num_bytes += len(line)
        self._num_recorded += 1

    def flush(self) -> None:
        """Let all that was written be in the file."""
        try:
            if self._file is not None:
                self._file.flush()
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Write what is left; idempotent."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self) -> BinaryIO:
        """Put the file that is there aside, and begin a new one that its owner alone may read."""
        with suppress(FileNotFoundError):
            self._path.replace(self._older)
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        file = os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(self._header)
        file.flush()
        self._num_bytes = len(self._header)
        return file

    def _fail(self, error: OSError) -> None:
        self._trouble = f"cannot be written: {error.strerror or one_line(error)}"
        _log.warning("the recording of the trace has ended: %s %s", self._path, self._trouble)
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def _facts(self, served: ServedPrompt) -> dict[str, Any]:
        """Return what is written of a request; what is as usual is left out."""
        told = {
            "answer_ids": self._blocks(served.answer_keys),
            "tokens_by_tier": dict(served.tokens_by_tier),
            "stop": served.stop,
            "tenant": self._name("tenant", served.tenant),
            "session": self._name("session", served.session),
            "end_session": served.end_session,
            "cache": "" if served.reads and served.writes else "read" if served.reads else "write",
        }
        given = {"expected_pause_s": served.expected_pause_s, "ttl_s": served.ttl_s}
        return {
            "timestamp": served.at_ms,
            "input_length": served.input_tokens,
            "output_length": served.output_tokens,
            "hash_ids": self._blocks(served.keys),
            **{name: value for name, value in told.items() if value},
            **{name: value for name, value in given.items() if value is not None},
        }

    def _blocks(self, keys: Iterable[bytes]) -> list[str]:
        return [_digest(key, self._secret, _BLOCK_DIGEST_BYTES, b"block") for key in keys]

    def _name(self, kind: str, name: str | None) -> str:
        if not name:
            return ""
        return _digest(name.encode(), self._secret, _NAME_DIGEST_BYTES, kind.encode())


def _digest(data: bytes, secret: bytes, num_bytes: int, kind: bytes) -> str:
    digest = blake2b(data, digest_size=num_bytes, key=secret, person=kind).digest()
    return urlsafe_b64encode(digest).decode()


def _line(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts).encode() + b"\n"


def _is_recorded_to(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def require_replaceable(path: Path) -> None:
    """Raise ``ConfigError`` when a recording cannot take the place of what is at ``path`` or beside it."""
    for there in (path, _older(path)):
        _require_recording(there)


def _older(path: Path) -> Path:
    return Path(f"{path}.1")


def _require_recording(path: Path) -> None:
    """Raise ``ConfigError`` when something is there that is no trace of ours, so that it is not replaced."""
    if not (path.exists() or path.is_symlink()):
        return
    if path.is_file() and not path.is_symlink():
        with path.open("rb") as file:
            if _is_recorded_to(file):
                raise ConfigError("record_trace", f"another server records to {path}; choose another file")
            if file.read(len(_BEGINNING)) == _BEGINNING:
                return
    raise ConfigError("record_trace", f"{path} is no recording and is not replaced; choose another file")
