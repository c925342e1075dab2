"""A ``prefixd serve`` of one's own, in a process beside this one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from kvstore.errors import ServerFailedError

_READY_WITHIN_S = 120.0
_STOPPED_WITHIN_S = 30.0
_LOG_LINES_SHOWN = 30


@contextmanager
def running_server(flags: Sequence[str], log: Path) -> Iterator[str]:
    """Start ``prefixd serve`` with ``flags`` on a free port, yield its URL once it is ready, stop it.

    Its output is added to ``log``. Blocks until the server has stopped, so that what it wrote to
    its tiers is there for the next one. Raises ``ServerFailedError``, with the end of the log, when
    the server does not become ready or does not stop by itself.
    """
    port = _free_port()
    process = _start([*flags, "--port", str(port)], log)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(process, url, log)
        yield url
        _stop(process, log)
    finally:
        process.kill()
        process.wait()


def end_of(log: Path) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:])


def _start(flags: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    # -P: a folder called api where the user stands is not ours.
    command = [sys.executable, "-P", "-m", "prefixd", "serve", *flags]
    # The user's own settings are for the user's own servers.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFIXD_")}
    with log.open("ab") as output:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline_s = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise ServerFailedError(f"the server ended with code {process.returncode}:\n{end_of(log)}")
        if _is_ready(url):
            return
        time.sleep(0.1)
    raise ServerFailedError(f"the server was not ready within {_READY_WITHIN_S:.0f} s:\n{end_of(log)}")


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5.0, trust_env=False).is_success
    except httpx.TransportError:
        return False


def _stop(process: subprocess.Popen[bytes], log: Path) -> None:
    process.terminate()
    try:
        process.wait(_STOPPED_WITHIN_S)
    except subprocess.TimeoutExpired:
        reason = f"the server did not stop within {_STOPPED_WITHIN_S:.0f} s:\n{end_of(log)}"
        raise ServerFailedError(reason) from None
