"""What answers that are not successes look like, for the descriptions of routes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from api.examples import example

Responses = dict[int | str, dict[str, Any]]

_MEANINGS = {
    400: "The request cannot be served as asked; `param` names the field at fault.",
    401: "No token, or a wrong one.",
    403: "The token's role does not allow this (`not_allowed`).",
    404: "It is not there, or it is somebody else's.",
    409: "It contradicts what there is: a budget, or an earlier request.",
    413: "The body is larger than is taken.",
    429: "Too much is under way already; `Retry-After` says when to come back.",
    499: "The client went away before the answer was whole.",
    500: "The server failed; its log says where.",
    503: "The server is stopping, or cannot do it now.",
}


class ErrorFacts(BaseModel):
    """What is wrong. ``code`` is stable; ``message`` is one line for people."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """An answer that is not a success."""

    model_config = example(
        error={
            "message": "there is no job 5ad1f00d5ad1f00d",
            "type": "invalid_request_error",
            "param": None,
            "code": "not_found",
        }
    )

    error: ErrorFacts


def errors(*statuses: int) -> Responses:
    """Return the description of these answers, for ``responses`` of a route."""
    return {status: {"model": ErrorAnswer, "description": _MEANINGS[status]} for status in statuses}
