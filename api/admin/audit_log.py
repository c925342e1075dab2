"""Who has changed what of a running service: kept in memory, and in a file if one is named."""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from kvstore.clock import Clock
from kvstore.errors import ConfigError

_log = logging.getLogger(__name__)
_MOST_KEPT = 1000
_MOST_UNWRITTEN = 10_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One action: who, by the token's name, what, on what (digests and numbers alone), and its outcome.

    ``tenant`` is whose token it was, ``None``: an operator's.
    """

    at: float
    who: str
    tenant: str | None
    action: str
    on: Mapping[str, Any] = field(default_factory=dict)
    outcome: str = "done"
    job: str | None = None


class AuditLog:
    """The last actions, and all of them as lines of JSON in ``file``, which its owner alone may read.

    Thread-safe; nothing waits for the file. Raises ``ConfigError`` when it cannot be opened.
    """

    def __init__(self, clock: Clock, file: Path | None = None) -> None:
        self._clock = clock
        self._entries: deque[Entry] = deque(maxlen=_MOST_KEPT)
        self._lock = Lock()
        self._num_unwritten = 0
        self._file = None if file is None else _opened(file)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="audit-log")

    def add(
        self,
        who: str,
        tenant: str | None,
        action: str,
        on: Mapping[str, Any],
        outcome: str,
        job: str | None = None,
    ) -> None:
        """Note an action that has just ended. Never blocks on the file."""
        entry = Entry(self._clock.wall_ms() / 1000, who, tenant, action, dict(on), outcome, job)
        with self._lock:
            self._entries.append(entry)
            if self._file is None:
                return
            if self._num_unwritten >= _MOST_UNWRITTEN:
                _log.error("the audit log is written too slowly: %s by %s is left out", action, who)
                return
            self._num_unwritten += 1
        self._writer.submit(self._write, entry)

    def entries(self) -> list[Entry]:
        """Return those in memory, the latest first."""
        with self._lock:
            return list(reversed(self._entries))

    def close(self) -> None:
        """Write what is left, and close the file; idempotent."""
        self._writer.shutdown(wait=True)
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, entry: Entry) -> None:
        line = json.dumps(asdict(entry), separators=(",", ":")) + "\n"
        try:
            if self._file is not None:
                os.write(self._file, line.encode())
        except OSError as error:
            _log.error("the audit log cannot be written: %s", error.strerror)
        with self._lock:
            self._num_unwritten -= 1


def _opened(file: Path) -> int:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, 0o600)
    except OSError as error:
        raise ConfigError("audit_log", f"cannot write {file}: {error.strerror}") from None
    return descriptor
