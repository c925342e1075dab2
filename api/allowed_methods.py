"""What an address takes, by the service's own description."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.routing import compile_path


def allowed_methods(app: FastAPI, path: str) -> str:
    """Return the methods that an address takes, for the header ``Allow``."""
    named = (methods for template, methods in app.openapi()["paths"].items() if _is_at(path, template))
    return ", ".join(sorted({method.upper() for methods in named for method in methods}))


def _is_at(path: str, template: str) -> bool:
    pattern, _, _ = compile_path(template)
    return pattern.match(path) is not None
