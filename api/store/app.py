"""A service that is a store alone, for engines in other processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry
from starlette.responses import JSONResponse, Response

from api.gate import Gate
from api.health import store_health_answer
from api.http_errors import install_error_handlers
from api.settings import Settings
from api.store.service import add_store_routes
from api.store_metrics import StoreCollector
from api.tenancy import Overseer
from api.tokens import authenticate_by
from engine_adapter.sidecar import Sidecar
from kvstore.remote.tenancy import Authenticate


def create_store_app(
    sidecar: Sidecar, settings: Settings, authenticate: Authenticate | None = None
) -> FastAPI:
    """Return the service over ``sidecar``, which stays its maker's to close.

    ``authenticate`` is what ``authenticate_by`` returns for the settings, if that has been asked for already.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        context.close()

    app = FastAPI(title="prefixd store", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_middleware(
        Gate, authenticate=authenticate or authenticate_by(settings), max_body_bytes=settings.max_body_bytes
    )
    install_error_handlers(app)
    context = add_store_routes(app, sidecar.store, sidecar.owners)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StoreCollector(sidecar.store))

    @app.get("/health", tags=["operation"])
    def health() -> Response:
        """200 while requests are answered (``ok`` or ``degraded``, with reasons), 503 otherwise."""
        answer = store_health_answer(sidecar.store.health(), sidecar.degraded, sidecar.broken)
        return JSONResponse(answer.body, answer.status)

    @app.get("/metrics", tags=["operation"])
    def metrics(_: Overseer) -> Response:
        """All metrics in Prometheus' text format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app
