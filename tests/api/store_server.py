"""A store that is served over HTTP on a free port, by a real server on a thread."""

from __future__ import annotations

import socket
import threading

import uvicorn
from fastapi import FastAPI

from api.bodies import BodiesInPieces
from api.gate import Gate
from api.http_errors import install_error_handlers
from api.store.service import add_store_routes
from kvstore.remote.tenancy import Tenant
from kvstore.store import TieredStore
from tests.eventually import eventually
from tests.remote_clients import by_token


def authenticate(token: str | None) -> Tenant:
    """Return whose a request is."""
    return by_token(token) if token else Tenant()


class StoreServer:
    """Answers until ``close``; on ``port``, or on any that is free."""

    def __init__(self, store: TieredStore, port: int = 0) -> None:
        app = FastAPI()
        app.add_middleware(Gate, authenticate=authenticate, max_body_bytes=1 << 24)
        install_error_handlers(app)
        self.context = add_store_routes(app, store)
        self._server = uvicorn.Server(
            uvicorn.Config(app, log_level="error", ws="none", lifespan="off", http=BodiesInPieces)
        )
        listener = socket.create_server(("127.0.0.1", port))
        self.port: int = listener.getsockname()[1]
        self._thread = threading.Thread(target=self._server.run, args=([listener],))
        self._thread.start()
        eventually(lambda: self._server.started)

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Answer no more."""
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(20)
        self.context.close()
