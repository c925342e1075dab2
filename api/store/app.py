"""A service that is a store alone, for engines in other processes."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry
from starlette.responses import JSONResponse, Response

from api.gate import Gate
from api.health import store_health_answer
from api.http_errors import install_error_handlers
from api.settings import Settings
from api.store.service import add_store_routes
from api.store_metrics import StoreCollector
from engine_adapter.sidecar import Sidecar
from kvstore.errors import AccessError
from kvstore.remote.tenancy import Authenticate, Tenant, open_to_all


def authenticate_by(settings: Settings) -> Authenticate:
    """Return who a token lets in: with an ``api_token`` those who have it, else everybody who gets so far."""
    if settings.api_token is None:
        return open_to_all
    expected = settings.api_token.get_secret_value().encode()

    def authenticate(token: str | None) -> Tenant:
        if token is None or not hmac.compare_digest(token.encode(), expected):
            raise AccessError("the token is missing or wrong: give the server's api_token")
        return Tenant()

    return authenticate


def create_store_app(sidecar: Sidecar, settings: Settings) -> FastAPI:
    """Return the service over ``sidecar``, which stays its maker's to close."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        context.close()

    app = FastAPI(title="prefixd store", docs_url=None, redoc_url=None, lifespan=lifespan)
    token = settings.api_token.get_secret_value() if settings.api_token else None
    app.add_middleware(Gate, api_token=token, max_body_bytes=settings.max_body_bytes)
    install_error_handlers(app)
    context = add_store_routes(app, sidecar.store, _one_tenant, sidecar.owners)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StoreCollector(sidecar.store))

    @app.get("/health", tags=["operation"])
    def health() -> Response:
        """200 while requests are answered (``ok`` or ``degraded``, with reasons), 503 otherwise."""
        answer = store_health_answer(sidecar.store.health(), sidecar.degraded)
        return JSONResponse(answer.body, answer.status)

    @app.get("/metrics", tags=["operation"])
    def metrics() -> Response:
        """All metrics in Prometheus' text format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _one_tenant(_request: Request) -> Tenant:
    """Return whose a request is that has passed the gate."""
    return Tenant()
