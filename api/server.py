"""Runs the service until it is told to stop: one line when ready, a clean end on SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from api.bodies import BodiesInPieces
from api.health import Readiness
from api.listening import address_error
from api.quantities import format_bytes
from api.settings import Settings
from api.store.app import create_store_app
from api.tokens import authenticate_by
from engine_adapter.serving_config import ServingConfig, SidecarConfig
from engine_adapter.sidecar import open_sidecar
from kvstore.statistics import StoreStatistics

if TYPE_CHECKING:
    from engine_adapter.assemble import Serving

_BACKLOG = 512
# What requests that were ended have to say so, before their connections are cut.
_LAST_WORDS_S = 2.0


def serve_until_stopped(settings: Settings, config: ServingConfig, listener: socket.socket) -> None:
    """Assemble the server, answer requests until a signal comes, then drain and close.

    ``listener`` is bound and stays the caller's to close. A signal before the server is ready is
    an interrupt, which ends every ``with``. Raises ``ConfigError`` and what ``assemble`` raises.
    """
    from api.service import create_app  # noqa: PLC0415  a store alone needs no torch, which takes seconds
    from engine_adapter.assemble import assemble  # noqa: PLC0415  likewise

    _log_to_stderr(settings.log_level)
    authenticate = authenticate_by(settings)
    with (
        _handling(signal.default_int_handler),
        suppress(KeyboardInterrupt),
        closing(assemble(config)) as serving,
    ):
        _listen(settings, listener, serving.degraded)
        ready = ready_line(settings.model_name, listener, serving)
        app = create_app(serving, settings, authenticate=authenticate)
        _Server(app, settings.drain_s, ready, serving.engine.close).run(sockets=[listener])


def serve_store_until_stopped(settings: Settings, config: SidecarConfig, listener: socket.socket) -> None:
    """Open a store alone, and answer for it likewise. Raises ``ConfigError`` or ``PluginError``."""
    _log_to_stderr(settings.log_level)
    authenticate = authenticate_by(settings)
    with (
        _handling(signal.default_int_handler),
        suppress(KeyboardInterrupt),
        closing(open_sidecar(config, authenticate)) as sidecar,
    ):
        _listen(settings, listener, sidecar.degraded)
        tiers = _tiers_line(sidecar.store.statistics())
        places = f"unix://{config.socket} and http://{_address_of(listener)}"
        ready = f"prefixd keeps a store at {places} (tiers: {tiers})"
        app = create_store_app(sidecar, settings, authenticate)
        _Server(app, settings.drain_s, ready, _nothing).run(sockets=[listener])


def _listen(settings: Settings, listener: socket.socket, degraded: Mapping[str, str]) -> None:
    """Let requests come; tells of tiers that are not there. Raises ``ConfigError``."""
    for tier, reason in degraded.items():
        sys.stderr.write(f"prefixd: {tier}: {reason}\n")
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        raise address_error(settings.host, settings.port, error) from None


def ready_line(model_name: str, listener: socket.socket, serving: Serving) -> str:
    """Return what is printed when requests are answered: where, which model, which tiers and adapters."""
    told = f"tiers: {_tiers_line(serving.store.statistics())}"
    if adapters := ", ".join(serving.model_facts.adapters.digests):
        told += f"; adapters: {adapters}"
    return f"prefixd serves {model_name} at http://{_address_of(listener)}/v1 ({told})"


def _nothing() -> None:
    """End no requests: those of a store alone are short."""


def _address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tiers_line(statistics: StoreStatistics) -> str:
    return ", ".join(
        f"{tier.name} {format_bytes(tier.budget_bytes)}" for tier in statistics.tiers if tier.budget_bytes
    )


class _Server(uvicorn.Server):
    """Says when it is ready, and returns after a signal instead of raising it again."""

    def __init__(self, app: FastAPI, drain_s: float, ready: str, end_requests: Callable[[], object]) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            http=BodiesInPieces,
            timeout_graceful_shutdown=math.ceil(drain_s + _LAST_WORDS_S),
        )
        super().__init__(config)
        self._ready = ready
        self._readiness: Readiness = app.state.readiness
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
        self._readiness.is_draining = True

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
