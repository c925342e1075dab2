"""Runs the service until it is told to stop: one line when ready, a clean end on SIGTERM and SIGINT."""

from __future__ import annotations

import logging
import math
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from errno import EADDRINUSE
from types import FrameType

import uvicorn

from api.quantities import format_bytes
from api.serving_config import serving_config
from api.settings import Settings
from api.settings_sources import check_budgets
from engine_adapter.serving_config import ServingConfig
from kvstore.errors import ConfigError

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_BACKLOG = 512


def serve_until_stopped(settings: Settings) -> None:
    """Assemble the server, answer requests until a signal comes, then drain and close.

    The port is taken before the model is read, so that a port in use is said at once; a signal
    until then is an interrupt, which ends every ``with``. Raises ``ConfigError`` and what
    ``assemble`` raises.
    """
    check_budgets(settings)
    config = serving_config(settings)
    logging.basicConfig(
        level=settings.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    with (
        _handling(signal.default_int_handler),
        suppress(KeyboardInterrupt),
        closing(listening_socket(settings)) as listener,
    ):
        _serve(settings, config, listener)


def listening_socket(settings: Settings) -> socket.socket:
    """Return a socket bound to the address, not yet listening. Raises ``ConfigError`` saying why not."""
    try:
        family, *_, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            "host", f"{settings.host}: {error.strerror}; name an address of this machine"
        ) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _bind_error(settings, error) from None
    return listener


def _bind_error(settings: Settings, error: OSError) -> ConfigError:
    if error.errno == EADDRINUSE:
        reason = (
            f"{settings.port} is in use on {settings.host}; stop who uses it, or choose another with --port"
        )
        return ConfigError("port", reason)
    return ConfigError("host", f"cannot listen on {settings.host} port {settings.port}: {error.strerror}")


def _serve(settings: Settings, config: ServingConfig, listener: socket.socket) -> None:
    from api.service import create_app  # noqa: PLC0415 - likewise
    from engine_adapter.assemble import assemble  # noqa: PLC0415 - slow, and a port in use is said before it

    with closing(assemble(config)) as serving:
        for reason in serving.degraded:
            sys.stderr.write(f"prefixd: {reason}\n")
        try:
            listener.listen(_BACKLOG)
        except OSError as error:
            raise _bind_error(settings, error) from None
        tiers = [(tier.name, tier.budget_bytes) for tier in serving.store.statistics().tiers]
        server = _Server(create_app(serving, settings), settings, ready_line(settings, listener, tiers))
        server.run(sockets=[listener])


def ready_line(settings: Settings, listener: socket.socket, tiers: list[tuple[str, int]]) -> str:
    """Return what is printed when requests are answered: where, which model, which tiers."""
    host, port = listener.getsockname()[:2]
    address = f"[{host}]" if ":" in host else host
    named = ", ".join(f"{name} {format_bytes(budget_bytes)}" for name, budget_bytes in tiers)
    return f"prefixd serves {settings.model_name} at http://{address}:{port}/v1 (tiers: {named})"


class _Server(uvicorn.Server):
    """Says when it is ready, and returns after a signal instead of raising it again."""

    def __init__(self, app: object, settings: Settings, ready: str) -> None:
        config = uvicorn.Config(
            app,  # type: ignore[arg-type]
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=math.ceil(settings.drain_s),
        )
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(self._ready, flush=True)  # noqa: T201 - the line that scripts and people wait for

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with _handling(self.handle_exit):
            yield


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Have SIGTERM and SIGINT call ``handler`` inside."""
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
