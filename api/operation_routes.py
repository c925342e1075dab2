"""The routes that say how a service is: for load balancers, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from api.error_schema import Responses, errors
from api.examples import example
from api.health import HealthAnswer, Readiness
from api.tenancy import Overseer


class HealthView(BaseModel):
    """``ok``, ``degraded`` or ``unhealthy``, and what is wrong: with a tier, the store or the engine."""

    model_config = example(status="ok", reasons={})

    status: str
    reasons: dict[str, str]


class ReadyView(BaseModel):
    """``ready``, or why not: ``starting``, ``draining`` or ``unhealthy``."""

    model_config = example(status="ready")

    status: str


_METRICS: Responses = {
    200: {
        "description": "All metrics in Prometheus' text format.",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
}


def add_operation_routes(
    app: FastAPI, health: Callable[[], HealthAnswer], readiness: Readiness, metrics: Callable[[], bytes]
) -> None:
    """Let ``app`` tell how it is; ``readiness`` is its own."""
    app.state.readiness = readiness

    @app.get("/health", tags=["operation"], responses=_as_told(HealthView, "Requests are not answered."))
    def get_health() -> Response:
        """200 while requests are answered (``ok`` or ``degraded``, with reasons), 503 otherwise."""
        answer = health()
        return JSONResponse(answer.body, answer.status)

    @app.get("/ready", tags=["operation"], responses=_as_told(ReadyView, "No requests should be sent here."))
    def get_ready() -> Response:
        """200 while requests should be sent here; 503 while it starts, stops, or cannot answer."""
        answer = readiness.answer(health())
        return JSONResponse(answer.body, answer.status)

    @app.get("/metrics", tags=["operation"], responses=_METRICS | errors(403), response_class=Response)
    def get_metrics(_: Overseer) -> Response:
        """All metrics in Prometheus' text format."""
        return Response(metrics(), media_type=CONTENT_TYPE_LATEST)


def _as_told(model: type[BaseModel], meaning: str) -> Responses:
    return {200: {"model": model}, 503: {"model": model, "description": meaning}}
