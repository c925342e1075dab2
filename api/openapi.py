"""The OpenAPI description of a service, with what the gate and the framework may answer on every route."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from api.error_schema import ErrorAnswer, errors
from api.gate import OPEN_PATHS

_ERROR = {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}
_MEANING = "The token from the server's settings, where it has any."


def describe(app: FastAPI, description: str) -> None:
    """Let ``app`` describe itself whole; called once all its routes are there."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            told = get_openapi(
                title=app.title, version=app.version, description=description, routes=app.routes
            )
            _restore_examples(told["components"]["schemas"])
            app.openapi_schema = _completed(told)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # the way that FastAPI documents


def _restore_examples(schemas: dict[str, Any]) -> None:
    """Put the models' own examples in place of those that the framework took the nulls out of."""
    for model in models_of_ours(BaseModel):
        extra: Any = model.model_config.get("json_schema_extra")
        if model.__name__ in schemas and extra and "examples" in schemas[model.__name__]:
            schemas[model.__name__]["examples"] = extra["examples"]


def models_of_ours(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield the models of requests and answers, whose names differ: they are the names of their schemas."""
    for model in base.__subclasses__():
        if model.__module__.startswith("api.") and "[" not in model.__name__:
            yield model
        yield from models_of_ours(model)


def _completed(told: dict[str, Any]) -> dict[str, Any]:
    components = told.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["ErrorAnswer"] = ErrorAnswer.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(schemas["ErrorAnswer"].pop("$defs", {}))
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "description": _MEANING}}
    for path, operations in told["paths"].items():
        for operation in operations.values():
            _complete(path, operation)
    return told


def _complete(path: str, operation: dict[str, Any]) -> None:
    """Add the answers that any such route may give; drop the framework's own, which is never given."""
    answers: dict[str, Any] = operation["responses"]
    answers.pop("422", None)
    common = [500, 503]
    if "requestBody" in operation:
        common.append(413)
    if "requestBody" in operation or operation.get("parameters"):
        common.append(400)
    if path not in OPEN_PATHS:
        common.append(401)
        operation["security"] = [{"token": []}]
    for status, answer in errors(*common).items():
        answers.setdefault(str(status), {"description": answer["description"], "content": {"": _ERROR}})
    for answer in answers.values():
        if _ERROR in answer.get("content", {}).values():
            answer["content"] = {"application/json": _ERROR}  # whatever the route's successes are
    operation["responses"] = dict(sorted(answers.items()))
