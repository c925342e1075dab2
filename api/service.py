"""The HTTP service, built from an assembled server; async lives in ``api`` alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from api.context import Context
from api.few_threads import FewThreads
from api.gate import Gate
from api.health import health_answer
from api.http_errors import install_error_handlers
from api.kv_routes import kv_routes
from api.metrics import Metrics
from api.openai_routes import openai_routes
from api.prompts import PromptEncoder
from api.served import Served
from api.settings import Settings
from api.tenancy import Overseer
from api.tokens import authenticate_by
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

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        context.prompts.close()
        context.explaining.close()
        context.constraining.close()

    app = FastAPI(title="prefixd", docs_url=None, redoc_url=None, lifespan=lifespan)
    authenticate = authenticate or authenticate_by(settings)
    app.add_middleware(Gate, authenticate=authenticate, max_body_bytes=settings.max_body_bytes)
    install_error_handlers(app)
    app.include_router(openai_routes(context))
    app.include_router(kv_routes(context))
    _add_operation_routes(app, context)
    return app


def _add_operation_routes(app: FastAPI, context: Context) -> None:
    @app.get("/health", tags=["operation"])
    def health() -> Response:
        """200 while requests are answered (``ok`` or ``degraded``, with reasons), 503 otherwise."""
        answer = health_answer(context.serving)
        return JSONResponse(answer.body, answer.status)

    @app.get("/metrics", tags=["operation"])
    def metrics(_: Overseer) -> Response:
        """All metrics in Prometheus' text format."""
        return Response(context.metrics.render(), media_type=CONTENT_TYPE_LATEST)
