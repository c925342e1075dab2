"""What every request passes first: the token, the bound on its body, and the net for unforeseen errors."""

from __future__ import annotations

import logging
import traceback

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http_errors import status_response
from kvstore.errors import AccessError
from kvstore.remote.tenancy import Authenticate, Tenant

OPEN_PATHS = frozenset({"/health"})
_SCHEME = "bearer "
_log = logging.getLogger(__name__)


class Gate:
    """Refuses strangers (401) and oversize bodies (413), and answers 500 for an unforeseen error.

    Whose a request is stands in its ``state.tenant`` from here on.

    An unforeseen error is logged by its type and place, without its message, which may quote a prompt.
    """

    def __init__(self, app: ASGIApp, authenticate: Authenticate, max_body_bytes: int) -> None:
        self._app = app
        self._authenticate = authenticate
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        tenant = self._tenant_of(scope)
        if tenant is None and scope["path"] not in OPEN_PATHS:
            await status_response(401)(scope, receive, send)
        elif self._declared_bytes(scope) > self._max_body_bytes:
            await status_response(413, self._too_large)(scope, receive, send)
        else:
            scope.setdefault("state", {})["tenant"] = tenant
            await self._pass(scope, self._bounded(receive), send)

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

    @property
    def _too_large(self) -> str:
        return f"the body is larger than the {self._max_body_bytes} bytes that are taken"

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

    def _bounded(self, receive: Receive) -> Receive:
        received_bytes = 0

        async def receive_bounded() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > self._max_body_bytes:
                raise HTTPException(413, self._too_large)
            return message

        return receive_bounded
