"""Beginning a long operation on a server, and following it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from api.client.server import Server

RUNNING = "running"
_FIRST_LOOK_S = 0.05
_LONGEST_PAUSE_S = 1.0

Job = Mapping[str, Any]


def begun(
    server: Server,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    query: Mapping[str, Any] | None = None,
) -> Job:
    """Begin a job and return it as it is then."""
    return server.ask(method, path, body, wants="id", query=query, headers=fresh_key())


def fresh_key() -> dict[str, str]:
    """Return the header by which a server knows the same request again: it begins no second job for it."""
    return {"Idempotency-Key": secrets.token_hex(16)}


def followed(
    server: Server, job: Job, tell: Callable[[Job], None], pause: Callable[[float], None] = time.sleep
) -> Job:
    """Return a job as it ended; ``tell`` hears how far it is, now and again."""
    pause_s = _FIRST_LOOK_S
    tell(job)
    while job["state"] == RUNNING:
        pause(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, 1.5 * pause_s)
        job = server.ask("GET", f"/admin/jobs/{job['id']}", wants="state")
        tell(job)
    return job
