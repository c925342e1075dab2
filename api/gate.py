"""What every request passes first: the token, the bound on its body, and the net for unforeseen errors."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from typing import TypedDict

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http_errors import status_response
from api.settings import Settings
from api.ui.routes import UI_PATH
from kvstore.errors import AccessError
from kvstore.remote.tenancy import Authenticate, Tenant

OPEN_PATHS = frozenset({"/health", "/ready", UI_PATH})
IMPORT_PATH = "/admin/import"
_SCHEME = "bearer "
_log = logging.getLogger(__name__)


class BodyBounds(TypedDict):
    """How large bodies may be."""

    max_body_bytes: int
    others: Mapping[str, int]


def body_bounds(settings: Settings) -> BodyBounds:
    """Return the bounds that settings give."""
    return {"max_body_bytes": settings.max_body_bytes, "others": {IMPORT_PATH: settings.max_import_bytes}}


class Gate:
    """Refuses strangers (401) and oversize bodies (413), and answers 500 for an unforeseen error.

    Whose a request is stands in its ``state.tenant`` from here on.

    An unforeseen error is logged by its type and place, without its message, which may quote a prompt.
    """

    def __init__(
        self,
        app: ASGIApp,
        authenticate: Authenticate,
        max_body_bytes: int,
        others: Mapping[str, int] | None = None,
    ) -> None:
        """``others`` are paths whose bodies have bounds of their own."""
        self._app = app
        self._authenticate = authenticate
        self._max_body_bytes = max_body_bytes
        self._others = others or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        tenant, most_bytes = self._tenant_of(scope), self._others.get(scope["path"], self._max_body_bytes)
        if tenant is None and scope["path"] not in OPEN_PATHS:
            await status_response(401)(scope, receive, send)
        elif self._declared_bytes(scope) > most_bytes:
            await status_response(413, _too_large(most_bytes))(scope, receive, send)
        else:
            scope.setdefault("state", {})["tenant"] = tenant
            await self._pass(scope, _bounded(receive, most_bytes), send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:  # noqa: BLE001 - the last net: nothing may reach the server's own log
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{frame.filename}:{frame.lineno} in {frame.name}"
            _log.error("%s %r failed: %s at %s", scope["method"], scope["path"], type(error).__name__, place)
            if started:
                raise ConnectionAbortedError("the answer was cut short") from None
            await status_response(500)(scope, receive, send)

    def _tenant_of(self, scope: Scope) -> Tenant | None:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        sent = header.decode("latin-1")
        token = sent[len(_SCHEME) :] if sent.lower().startswith(_SCHEME) else None
        try:
            return self._authenticate(token)
        except AccessError:
            return None

    @staticmethod
    def _declared_bytes(scope: Scope) -> int:
        sent = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        return int(sent) if sent.isdigit() else 0


def _bounded(receive: Receive, most_bytes: int) -> Receive:
    received_bytes = 0

    async def receive_bounded() -> Message:
        nonlocal received_bytes
        message = await receive()
        received_bytes += len(message.get("body", b""))
        if received_bytes > most_bytes:
            raise HTTPException(413, _too_large(most_bytes))
        return message

    return receive_bounded


def _too_large(most_bytes: int) -> str:
    return f"the body is larger than the {most_bytes} bytes that are taken"
