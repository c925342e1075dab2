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
from api.error_schema import errors
from api.event_stream import EventStreamResponse, data_event
from api.http_errors import error_body, status_response
from api.openai_answers import ChatAnswer, CompletionAnswer, ModelCard, ModelList, answered
from api.openai_constraint import compiled
from api.openai_logprobs import TokenTexts
from api.openai_reply import ChatReply, CompletionReply, Reply, closing
from api.openai_request import check_fields, engine_request, in_words_of_the_body, sent_answers
from api.openai_schema import ChatFields, CompletionFields, GenerationFields
from api.tenancy import Writer
from engine_adapter.engine.answers import answers_of, usage_of
from engine_adapter.engine.events import Delta, Finished
from kvstore.remote.tenancy import Tenant

_CLIENT_CLOSED = 499


def openai_routes(context: Context) -> APIRouter:
    """Return the routes under ``/v1``."""
    router = APIRouter(prefix="/v1", tags=["openai"])
    texts = TokenTexts(context.serving.tokenizer)

    @router.get("/models")
    async def list_models() -> ModelList:
        """List the model that is served, and its LoRA adapters."""
        return ModelList(object="list", data=[_model_card(context, name) for name in context.served.names])

    @router.get("/models/{model:path}", responses=errors(404))
    async def get_model(model: str) -> ModelCard:
        """Return the card of one model or adapter."""
        return _model_card(context, model)

    @router.post("/completions", responses=answered(CompletionAnswer))
    async def complete(fields: CompletionFields, http: Request, tenant: Writer) -> Response:
        """Continue a prompt, given as text or token ids."""
        check_fields(fields, context.served)
        prompt = fields.prompt
        prompt_ids = await context.prompts.text(prompt) if isinstance(prompt, str) else prompt
        reply = CompletionReply(fields.model, context.now_s(), texts, fields.logprobs is not None)
        return await _answer(context, fields, tenant, prompt_ids, http, reply)

    @router.post("/chat/completions", responses=answered(ChatAnswer))
    async def chat(fields: ChatFields, http: Request, tenant: Writer) -> Response:
        """Answer a chat, written in the model's own template."""
        check_fields(fields, context.served)
        prompt_ids = await context.prompts.chat([message.for_template() for message in fields.messages])
        reply = ChatReply(fields.model, context.now_s(), texts, bool(fields.logprobs))
        return await _answer(context, fields, tenant, prompt_ids, http, reply)

    return router


def _model_card(context: Context, name: str) -> ModelCard:
    """Return what is told of a model; an adapter's ``parent`` is the one it belongs to."""
    lora = context.served.lora(name)
    return ModelCard(
        id=name,
        object="model",
        created=context.started_s,
        owned_by="prefixd",
        parent=None if lora is None else context.served.model,
        max_model_len=context.serving.model_facts.context_tokens,
    )


async def _answer(
    context: Context,
    fields: GenerationFields,
    tenant: Tenant,
    prompt_ids: list[int],
    http: Request,
    reply: Reply,
) -> Response:
    engine = context.serving.engine
    constraint = await compiled(fields, engine.constraints, context.constraining)
    with in_words_of_the_body(fields):
        lora = context.served.lora(fields.model)
        request = engine_request(fields, prompt_ids, lora, constraint, tenant.name)
        running = RunningRequest(engine, request, context.metrics.observe)
    if fields.stream:
        return EventStreamResponse(_chunks(running, reply, fields.includes_usage), on_end=running.cancel)
    try:
        return await _whole(running, fields, reply, http.receive)
    finally:
        running.cancel()


async def _whole(
    running: RunningRequest, fields: GenerationFields, reply: Reply, receive: Receive
) -> Response:
    """Wait for all answers, or for the client to go away."""
    answering = asyncio.ensure_future(running.all_events())
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            return status_response(_CLIENT_CLOSED, "the client closed the connection")
        answers = answers_of(answering.result())
    finally:
        answering.cancel()
        gone.cancel()
    for answer in answers:
        if answer.reason in {"error", "cancelled"}:
            return status_response(500 if answer.reason == "error" else 503, "the server is stopping")
    usage = usage_of([answer.usage for answer in answers])
    return JSONResponse(reply.whole(sent_answers(fields, answers), usage))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _chunks(running: RunningRequest, reply: Reply, includes_usage: bool) -> AsyncIterator[bytes]:
    """Yield the answers as server-sent events; an error ends the stream in its place."""
    for chunk in reply.opening(running.num_answers):
        yield data_event(chunk)
    ends: list[Finished] = []
    async for event in running.events():
        if isinstance(event, Delta):
            if event.text or event.logprobs:
                yield data_event(reply.piece(event))
        elif fault := _fault(event):
            yield data_event(fault)
            break
        else:
            ends.append(event)
            for chunk in _ending(ends, running.num_answers, reply, includes_usage):
                yield data_event(chunk)
    yield data_event(None)


def _ending(
    ends: list[Finished], num_answers: int, reply: Reply, includes_usage: bool
) -> list[dict[str, Any]]:
    """Return the chunks that end the answer that ended last, and the stream if it was the last one open."""
    last = reply.ending(ends[-1])
    if len(ends) < num_answers:
        return [last]
    usages = [end.usage for end in sorted(ends, key=lambda end: end.index)]
    return closing(last, usage_of(usages), includes_usage)


def _fault(end: Finished) -> dict[str, Any] | None:
    """Return the error that a stream ends with, if an answer ended so."""
    if end.reason == "error":
        return error_body("the server failed; its log says where", "server_error", None, "internal_error")
    if end.reason == "cancelled":
        return error_body("the server is stopping", "server_error", None, "shutting_down")
    return None
