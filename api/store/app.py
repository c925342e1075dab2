"""A service that is a store alone, for engines in other processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from api.admin.service import add_admin_routes
from api.gate import Gate, body_bounds
from api.health import Readiness, store_health_answer
from api.http_errors import install_error_handlers
from api.openapi import describe
from api.operation_routes import add_operation_routes
from api.settings import Settings
from api.store.service import add_store_routes
from api.store_metrics import StoreCollector
from api.tokens import authenticate_by
from api.ui.routes import add_ui_route
from engine_adapter.sidecar import Sidecar
from kvstore.remote.tenancy import Authenticate


def create_store_app(
    sidecar: Sidecar, settings: Settings, authenticate: Authenticate | None = None
) -> FastAPI:
    """Return the service over ``sidecar``, which stays its maker's to close.

    ``authenticate`` is what ``authenticate_by`` returns for the settings, if that has been asked for already.
    """
    readiness = Readiness()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        admin.start()
        readiness.is_started = True
        yield
        await admin.close()
        context.close()

    def num_clients() -> int:
        local = sidecar.server.num_clients if sidecar.server else 0
        return local + context.clients.num_clients

    app = FastAPI(title="prefixd store", docs_url=None, redoc_url=None, lifespan=lifespan)
    authenticate = authenticate or authenticate_by(settings)
    app.add_middleware(Gate, authenticate=authenticate, **body_bounds(settings))
    install_error_handlers(app)
    context = add_store_routes(app, sidecar.store, sidecar.owners)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StoreCollector(sidecar.store))
    admin = add_admin_routes(app, sidecar.store, settings, sidecar.degraded, num_clients)
    add_operation_routes(
        app,
        lambda: store_health_answer(
            sidecar.store.health(), sidecar.degraded, {**sidecar.broken, **context.broken}
        ),
        readiness,
        lambda: generate_latest(registry),
    )
    add_ui_route(app)
    describe(app, "A store of blocks for engines in other processes, and the administration of it.")
    return app
