"""The one place that turns faults into answers of OpenAI's shape: ``{"error": {...}}``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from api.allowed_methods import allowed_methods
from kvstore.errors import (
    AbsentError,
    AccessError,
    BackendError,
    ConfigError,
    ConflictError,
    EngineClosedError,
    NeedsModelError,
    OverloadedError,
    PinBudgetError,
    PrefixdError,
    PromptTooLongError,
    RequestError,
    StoreClosedError,
    UnknownModelError,
)

_INVALID = "invalid_request_error"
_METHOD_NOT_ALLOWED = 405

# Error, status, type and code; the first row that fits an error decides.
ERRORS: tuple[tuple[type[PrefixdError], int, str, str | None], ...] = (
    (UnknownModelError, 404, _INVALID, "model_not_found"),
    (PromptTooLongError, 400, _INVALID, "context_length_exceeded"),
    (RequestError, 400, _INVALID, None),
    (OverloadedError, 429, "rate_limit_error", "too_many_waiting"),
    (EngineClosedError, 503, "server_error", "engine_closed"),
    (AccessError, 403, "permission_error", "not_allowed"),
    (ConfigError, 400, _INVALID, None),
    (StoreClosedError, 503, "server_error", "shutting_down"),
    (BackendError, 503, "server_error", "medium_failed"),
    (AbsentError, 404, _INVALID, "not_found"),
    (NeedsModelError, 400, _INVALID, "needs_model"),
    (ConflictError, 409, _INVALID, "conflict"),
    (PinBudgetError, 409, _INVALID, "pin_budget_exceeded"),
)
# Status that the framework or a middleware answers with: type, code and, where ours says more, message.
STATUSES: Mapping[int, tuple[str, str | None, str | None]] = {
    400: (_INVALID, "invalid_json", "the body cannot be read as JSON"),
    401: (_INVALID, "invalid_api_key", "send the server's token as 'Authorization: Bearer TOKEN'"),
    404: (_INVALID, "unknown_url", "there is nothing at this address; see /openapi.json"),
    405: (_INVALID, "method_not_allowed", None),
    413: (_INVALID, "request_too_large", None),
    500: ("server_error", "internal_error", "the server failed; its log says where"),
}
# Where a field may be of several types, the framework puts the type into the path.
_TYPE_TAGS = ("str", "int")
# What the framework says in words of its own, by its type of fault.
_REASONS = {
    "missing": "is required",
    "extra_forbidden": "is not a field of this API; remove it",
    "model_attributes_type": "must be an object",
    "too_short": "must not be empty",
    "dict_type": "must be an object",
}
_HEADERS = {401: {"WWW-Authenticate": "Bearer"}}


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return the body of an error answer; whatever of ``message`` is not text is replaced."""
    readable = message.encode("utf-8", "replace").decode()
    return {"error": {"message": readable, "type": kind, "param": param, "code": code}}


def error_answer(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return status and body for one of the errors in the table."""
    status, kind, code = next(row[1:] for row in ERRORS if isinstance(error, row[0]))
    param = getattr(error, "param", None) or getattr(error, "setting", None)
    return status, error_body(str(error), kind, param, code)


def status_response(status: int, detail: str = "", headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer for a bare HTTP status."""
    kind, code, message = STATUSES.get(status, (_INVALID if status < 500 else "server_error", None, None))
    told = {**_HEADERS.get(status, {}), **(headers or {})}
    return JSONResponse(error_body(message or detail, kind, None, code), status, told)


def install_error_handlers(app: FastAPI) -> None:
    """Give every answer that is not a success its OpenAI shape."""

    async def own_error(_: Request, error: Exception) -> Response:
        status, body = error_answer(error)
        return JSONResponse(body, status, _headers(error))

    for kind, *_ in ERRORS:
        app.add_exception_handler(kind, own_error)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        is_known = error.status_code == _METHOD_NOT_ALLOWED
        headers = {"Allow": allowed_methods(app, request.url.path)} if is_known else error.headers
        return status_response(error.status_code, error.detail, headers)

    @app.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: RequestValidationError) -> Response:
        return JSONResponse(_validation_body(request, error.errors()), 400)


def _headers(error: Exception) -> dict[str, str]:
    return {"Retry-After": f"{math.ceil(error.retry_after_s)}"} if isinstance(error, OverloadedError) else {}


def _validation_body(request: Request, faults: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Name the first field at fault and what it should be, never what was sent."""
    same_field = [fault for fault in faults if fault["loc"][:2] == faults[0]["loc"][:2]]
    # Of a field that may be this or that, the deepest fault is in what was meant.
    fault = max(same_field, key=lambda fault: len(fault["loc"]))
    if fault["type"] == "json_invalid":
        reason = f"{fault['ctx']['error']} at character {fault['loc'][-1]}"
        return error_body(f"the body is not valid JSON: {reason}", _INVALID, None, "invalid_json")
    param = _param(fault["loc"])
    if param is None and "json" not in request.headers.get("content-type", ""):
        return error_body("send a JSON body with 'Content-Type: application/json'", _INVALID)
    reason = (
        _REASONS.get(fault["type"])
        or _not_as_listed(fault)
        or str(fault["msg"]).removeprefix("Value error, ")
    )
    refused = RequestError(param or "body", reason.replace("Input should be", "must be"))
    return error_body(str(refused), _INVALID, param and refused.param)


def _not_as_listed(fault: Mapping[str, Any]) -> str | None:
    """Say of a key, digest or number that it is not as lists write it; ``None``: another fault."""
    pattern = fault.get("ctx", {}).get("pattern", "")
    if "0-9a-f" not in pattern:
        return None
    names = re.findall(r"\|(\w+)", pattern)
    return " or ".join(["must be hexadecimal, whole and in lower case", *map(repr, names)])


def _param(location: tuple[str | int, ...]) -> str | None:
    """Return ``messages[0].content`` for its path below the body; ``None`` for the body itself."""
    parts = [part for part in location[1:] if part not in _TYPE_TAGS and "[" not in str(part)]
    names = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts]
    return "".join(names).removeprefix(".") or None
