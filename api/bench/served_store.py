"""A store in a process of its own, to be measured from this one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kvstore.errors import ServerFailedError

_STOP_S = 20.0
_READY = re.compile(r"prefixd keeps a store at (?P<unix>unix://\S+) and (?P<http>http://\S+) ")


@dataclass(frozen=True)
class ServedStore:
    """Where it answers: at a socket of this machine and over HTTP."""

    unix: str
    http: str


@contextmanager
def served_store(host_bytes: int) -> Iterator[ServedStore]:
    """Start ``prefixd serve`` with a host tier alone, and stop it. Raises ``ServerFailedError``."""
    with TemporaryDirectory(prefix="prefixd-bench-") as folder:
        command = [
            sys.executable, "-m", "prefixd", "serve", "--port", "0", "--socket", f"{folder}/store.sock",
            "--cache-path", folder, "--host-bytes", str(host_bytes), "--disk-bytes", "0",
            "--log-level", "error",
        ]  # fmt: skip
        own = {name: value for name, value in os.environ.items() if not name.startswith("PREFIXD_")}
        server = subprocess.Popen(command, stdout=subprocess.PIPE, env=own, cwd=Path.cwd(), text=True)
        try:
            assert server.stdout is not None  # noqa: S101  for the type checker: it is a pipe
            line = server.stdout.readline()
            ready = _READY.match(line)
            if ready is None:
                raise ServerFailedError(f"the store to be measured did not start: {line.strip()}")
            yield ServedStore(ready["unix"], ready["http"])
        finally:
            server.terminate()
            try:
                server.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
