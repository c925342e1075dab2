"""What a server, its driver or a socket reports, in the project's terms: one table."""

from __future__ import annotations

import ssl

from redis import exceptions as driver

from kvstore.errors import BackendError, OutOfSpaceError, one_line

NAME = "redis"

_CLUSTER = "the server is a node of a cluster: name a single server in redis_url"
_LATE = "LATE"
_REASONS: dict[str, str] = {
    "NOAUTH": "the server wants a password: set redis_password, and redis_username if it has users",
    "WRONGPASS": "the server refuses the user or the password: check redis_username and redis_password",
    "NOPERM": "the user lacks a permission: allow it what docs/backends.md names",
    "DENIED": "the server is protected and takes local clients alone: give it a password",
    "OOM": "the server is at its maxmemory: raise it, or let it evict (maxmemory-policy allkeys-lru)",
    "READONLY": "the server is a read-only replica: name its primary in redis_url",
    "MASTERDOWN": "the server is a replica without its primary: name the primary in redis_url",
    "LOADING": "the server still loads its data: it is tried again by itself",
    "BUSY": "the server is busy with a script: it is tried again by itself",
    "MISCONF": "the server cannot save to its disk and takes no writes until it can: see its log",
    "NOREPLICAS": "the server has too few replicas and takes no writes: see its min-replicas-to-write",
    "MOVED": _CLUSTER,
    "ASK": _CLUSTER,
    "CROSSSLOT": _CLUSTER,
    "CLUSTERDOWN": _CLUSTER,
    _LATE: "the server does not answer in time: see whether it runs, or raise redis_timeout_s",
}
"""What to do, by the first word of an error reply."""

_CODES: tuple[tuple[type[Exception], str], ...] = (
    (driver.OutOfMemoryError, "OOM"),
    (driver.ReadOnlyError, "READONLY"),
    (driver.NoPermissionError, "NOPERM"),
    (driver.BusyLoadingError, "LOADING"),
    (driver.MasterDownError, "MASTERDOWN"),
    (driver.AskError, "MOVED"),
    (driver.ClusterDownError, "CLUSTERDOWN"),
    (driver.AuthenticationError, "WRONGPASS"),
    (driver.AuthenticationWrongNumberOfArgsError, "WRONGPASS"),
    (driver.TimeoutError, _LATE),
    (TimeoutError, _LATE),
    (BlockingIOError, _LATE),
)
"""The driver takes the first word off where it has a class for it."""


class RefusedError(Exception):
    """An error reply of the server, as it came; its first word is a code."""


class ProtocolError(Exception):
    """Bytes that are no reply to what was asked; the connection is of no more use."""


def ours(operation: str, error: Exception) -> BackendError:
    """Return a fault as the store knows it, with a reason that says what to do."""
    text = one_line(error)
    code = _code(error, text)
    kind = OutOfSpaceError if code == "OOM" else BackendError
    if reason := _REASONS.get(code):
        return kind(NAME, operation, reason)
    if isinstance(error, RefusedError | driver.ResponseError):
        return BackendError(NAME, operation, f"the server refuses: {text}")
    if isinstance(error, ProtocolError):
        return BackendError(NAME, operation, f"the server's answer is not understood: {text}")
    if isinstance(error, ssl.SSLError):
        text = f"TLS: {text}"
    return BackendError(NAME, operation, f"the server cannot be reached: {text}")


def _code(error: Exception, text: str) -> str:
    if isinstance(error, driver.AuthenticationError) and "required" in text:
        return "NOAUTH"
    for known, code in _CODES:
        if isinstance(error, known):
            return code
    return text.split(" ", 1)[0]
