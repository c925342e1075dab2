"""The HTTP service, built from an assembled server; async lives in ``api`` alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from api.admin.served_model import ServedModel
from api.admin.service import add_admin_routes
from api.context import Context
from api.few_threads import FewThreads
from api.gate import Gate, body_bounds
from api.health import Readiness, health_answer
from api.http_errors import install_error_handlers
from api.metrics import Metrics
from api.openai_routes import openai_routes
from api.openapi import describe
from api.operation_routes import add_operation_routes
from api.prompts import PromptEncoder
from api.served import Served
from api.settings import Settings
from api.tokens import authenticate_by
from api.ui.routes import add_ui_route
from engine_adapter.assemble import Serving
from kvstore.clock import Clock
from kvstore.remote.tenancy import Authenticate


def create_app(
    serving: Serving,
    settings: Settings,
    clock: Clock | None = None,
    authenticate: Authenticate | None = None,
) -> FastAPI:
    """Return the service over ``serving``, which stays its maker's to close.

    ``authenticate`` is what ``authenticate_by`` returns for the settings, if that has been asked for already.
    """
    clock = clock or Clock()
    context = Context(
        serving=serving,
        served=Served(settings.model_name, tuple(serving.model_facts.adapters.digests)),
        metrics=Metrics(serving),
        prompts=PromptEncoder(serving.tokenizer, serving.model_facts.context_tokens),
        explaining=FewThreads("explain"),
        constraining=FewThreads("constrain", max_waiting=settings.max_waiting),
        clock=clock,
        started_s=clock.wall_ms() // 1000,
    )

    readiness = Readiness()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        admin.start()
        readiness.is_started = True
        yield
        await admin.close()
        context.prompts.close()
        context.explaining.close()
        context.constraining.close()

    app = FastAPI(title="prefixd", docs_url=None, redoc_url=None, lifespan=lifespan)
    authenticate = authenticate or authenticate_by(settings)
    app.add_middleware(Gate, authenticate=authenticate, **body_bounds(settings))
    install_error_handlers(app)
    app.include_router(openai_routes(context))
    admin = add_admin_routes(
        app, serving.store, settings, serving.degraded, lambda: 0, ServedModel(context), clock
    )
    add_operation_routes(app, lambda: health_answer(serving), readiness, context.metrics.render)
    add_ui_route(app)
    describe(app, "A model served with its prefixes cached in tiers, and the administration of those.")
    return app
