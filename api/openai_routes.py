"""The OpenAI-compatible routes: models, completions and chats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive

from api.context import Context
from api.engine_bridge import RunningRequest
from api.event_stream import EventStreamResponse, data_event
from api.http_errors import error_body, status_response
from api.openai_reply import ChatReply, CompletionReply, Reply
from api.openai_request import check_fields, engine_request
from api.openai_schema import ChatFields, CompletionFields, GenerationFields
from engine_adapter.engine.request import Delta, Finished

_CLIENT_CLOSED = 499


def openai_routes(context: Context) -> APIRouter:
    """Return the routes under ``/v1``."""
    router = APIRouter(prefix="/v1", tags=["openai"])

    @router.get("/models")
    async def list_models() -> dict[str, Any]:
        """List the model that is served, and its LoRA adapters."""
        return {"object": "list", "data": [_model_card(context, name) for name in context.served.names]}

    @router.get("/models/{model:path}")
    async def get_model(model: str) -> dict[str, Any]:
        """Return the card of one model or adapter."""
        return _model_card(context, model)

    @router.post("/completions")
    async def complete(fields: CompletionFields, http: Request) -> Response:
        """Continue a prompt, given as text or token ids."""
        check_fields(fields, context.served)
        prompt = fields.prompt
        prompt_ids = await context.prompts.text(prompt) if isinstance(prompt, str) else prompt
        return await _answer(
            context, fields, prompt_ids, http, CompletionReply(fields.model, context.now_s())
        )

    @router.post("/chat/completions")
    async def chat(fields: ChatFields, http: Request) -> Response:
        """Answer a chat, written in the model's own template."""
        check_fields(fields, context.served)
        prompt_ids = await context.prompts.chat([message.for_template() for message in fields.messages])
        return await _answer(context, fields, prompt_ids, http, ChatReply(fields.model, context.now_s()))

    return router


def _model_card(context: Context, name: str) -> dict[str, Any]:
    """Return what is told of a model; an adapter's ``parent`` is the one it belongs to."""
    lora = context.served.lora(name)
    return {
        "id": name,
        "object": "model",
        "created": context.started_s,
        "owned_by": "prefixd",
        "parent": None if lora is None else context.served.model,
        "max_model_len": context.serving.model_facts.context_tokens,
    }


async def _answer(
    context: Context, fields: GenerationFields, prompt_ids: list[int], http: Request, reply: Reply
) -> Response:
    request = engine_request(fields, prompt_ids, context.served.lora(fields.model))
    running = RunningRequest(context.serving.engine, request, context.metrics.observe)
    if fields.stream:
        return EventStreamResponse(_chunks(running, reply, fields.includes_usage), on_end=running.cancel)
    try:
        return await _whole(running, reply, http.receive)
    finally:
        running.cancel()


async def _whole(running: RunningRequest, reply: Reply, receive: Receive) -> Response:
    """Wait for the whole answer, or for the client to go away."""
    answer = asyncio.ensure_future(running.whole())
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            return status_response(_CLIENT_CLOSED, "the client closed the connection")
        text, end = answer.result()
    finally:
        answer.cancel()
        gone.cancel()
    if end.reason in {"error", "cancelled"}:
        return status_response(500 if end.reason == "error" else 503, "the server is stopping")
    return JSONResponse(reply.whole(text, end.reason, end.usage))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _chunks(running: RunningRequest, reply: Reply, includes_usage: bool) -> AsyncIterator[bytes]:
    """Yield the answer as server-sent events; an error ends the stream in its place."""
    for chunk in reply.opening():
        yield data_event(chunk)
    while isinstance(event := await running.next_event(), Delta):
        if event.text:
            yield data_event(reply.piece(event.text))
    for chunk in _last_chunks(event, reply, includes_usage):
        yield data_event(chunk)
    yield data_event(None)


def _last_chunks(end: Finished, reply: Reply, includes_usage: bool) -> list[dict[str, Any]]:
    if end.reason == "error":
        return [error_body("the server failed; its log says where", "server_error", None, "internal_error")]
    if end.reason == "cancelled":
        return [error_body("the server is stopping", "server_error", None, "shutting_down")]
    return reply.closing(end.reason, end.usage, includes_usage)
