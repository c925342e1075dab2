"""Runs the service until it is told to stop: one line when ready, a clean end on SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI

from api.listening import address_error
from api.quantities import format_bytes
from api.service import create_app
from api.settings import Settings
from engine_adapter.assemble import Serving, assemble
from engine_adapter.serving_config import ServingConfig

_BACKLOG = 512
# What requests that were ended have to say so, before their connections are cut.
_LAST_WORDS_S = 2.0


def serve_until_stopped(settings: Settings, config: ServingConfig, listener: socket.socket) -> None:
    """Assemble the server, answer requests until a signal comes, then drain and close.

    ``listener`` is bound and stays the caller's to close. A signal before the server is ready is
    an interrupt, which ends every ``with``. Raises ``ConfigError`` and what ``assemble`` raises.
    """
    _log_to_stderr(settings.log_level)
    with (
        _handling(signal.default_int_handler),
        suppress(KeyboardInterrupt),
        closing(assemble(config)) as serving,
    ):
        for tier, reason in serving.degraded.items():
            sys.stderr.write(f"prefixd: {tier}: {reason}\n")
        try:
            listener.listen(_BACKLOG)
        except OSError as error:
            raise address_error(settings.host, settings.port, error) from None
        ready = ready_line(settings.model_name, listener, serving)
        app = create_app(serving, settings)
        _Server(app, settings.drain_s, ready, serving.engine.close).run(sockets=[listener])


def ready_line(model_name: str, listener: socket.socket, serving: Serving) -> str:
    """Return what is printed when requests are answered: where, which model, which tiers and adapters."""
    host, port = listener.getsockname()[:2]
    address = f"[{host}]" if ":" in host else host
    tiers = serving.store.statistics().tiers
    named = ", ".join(f"{tier.name} {format_bytes(tier.budget_bytes)}" for tier in tiers)
    adapters = ", ".join(serving.model_facts.adapters.digests)
    told = f"tiers: {named}; adapters: {adapters}" if adapters else f"tiers: {named}"
    return f"prefixd serves {model_name} at http://{address}:{port}/v1 ({told})"


class _Server(uvicorn.Server):
    """Says when it is ready, and returns after a signal instead of raising it again."""

    def __init__(self, app: FastAPI, drain_s: float, ready: str, end_requests: Callable[[], object]) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=math.ceil(drain_s + _LAST_WORDS_S),
        )
        super().__init__(config)
        self._ready = ready
        self._drain_s = drain_s
        self._end_requests = end_requests
        self._hurry = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            sys.stdout.write(f"{self._ready}\n")
            sys.stdout.flush()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests finish; those that take longer hear of their end before their connection closes."""
        ending = asyncio.get_running_loop().run_in_executor(None, self._end_requests_in_time)
        await super().shutdown(sockets)
        self._hurry.set()
        await ending

    def _end_requests_in_time(self) -> None:
        self._hurry.wait(self._drain_s)
        self._end_requests()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Stop; told twice, wait for no request any more."""
        if self.should_exit:
            self._hurry.set()
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with _handling(self.handle_exit):
            yield


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Have SIGTERM and SIGINT call ``handler`` inside."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _log_to_stderr(level: str) -> None:
    line = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=level.upper(), stream=sys.stderr, format=line)
    # Its lines about starting and stopping say nothing that ours do not.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
