"""The dashboard's page, and the headers that keep a browser from doing more with it than it needs."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

from fastapi import FastAPI
from starlette.responses import HTMLResponse, Response

UI_PATH = "/ui"


def add_ui_route(app: FastAPI) -> None:
    """Let ``app`` show its administration to people. The page holds no figures: they take a token."""
    page = files("api.ui").joinpath("page.html").read_text("utf-8")
    headers = {
        "Content-Security-Policy": _policy(page),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }

    @app.get(UI_PATH, include_in_schema=False)
    async def get_ui() -> Response:
        """Return the page."""
        return HTMLResponse(page, headers=headers)


def _policy(page: str) -> str:
    """Return what the page may do: run its own script and style, ask this server, and nothing else."""
    rules = {
        "default-src": "'none'",
        "script-src": _digest_of("script", page),
        "style-src": _digest_of("style", page),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _digest_of(tag: str, page: str) -> str:
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
