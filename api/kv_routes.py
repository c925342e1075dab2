"""The routes that tell what the cache decides and why, and switch how far it is trusted."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from api.context import Context
from api.kv_reply import account_body, explanation_body, recording_body, shadows_body
from api.kv_schema import ExplainFields, ModeFields
from api.openai_fields import refuse_unserved_in_message
from engine_adapter.engine.explaining import Explanation
from engine_adapter.engine.request import Mode
from kvstore.errors import RequestError


def kv_routes(context: Context) -> APIRouter:
    """Return the routes under ``/kv``."""
    router = APIRouter(prefix="/kv", tags=["cache"])
    engine, watching = context.serving.engine, context.serving.watching

    @router.get("/plans")
    async def list_plans(limit: Annotated[int, Query(ge=1, le=256)] = 20) -> dict[str, Any]:
        """List what was decided about the last requests and what came of it, the latest first."""
        return {
            "object": "list",
            "data": [account_body(account) for account in engine.recent_plans()[:limit]],
        }

    @router.post("/explain")
    async def explain(fields: ExplainFields) -> dict[str, Any]:
        """Say what would be done with a prompt and why, and why its first missing block is missing."""
        prompt_ids = await _prompt_ids(context, fields)
        return explanation_body(await context.explaining.run(lambda: _explain(context, fields, prompt_ids)))

    @router.get("/stats")
    async def get_stats() -> dict[str, Any]:
        """Return what shadow policies would have hit, and how far the recording of a trace has come."""
        shadows, recording = watching.shadows(), watching.recording()
        return {
            "shadows": None if shadows is None else shadows_body(shadows),
            "recording": None if recording is None else recording_body(recording, watching.num_unrecorded),
        }

    @router.get("/mode")
    async def get_mode() -> dict[str, str]:
        """Return the mode of requests that name none."""
        return {"mode": engine.mode.value}

    @router.put("/mode")
    async def set_mode(fields: ModeFields) -> dict[str, str]:
        """Set the mode of requests that name none and come from now on."""
        engine.mode = Mode(fields.mode)
        return {"mode": fields.mode}

    return router


async def _prompt_ids(context: Context, fields: ExplainFields) -> list[int]:
    if (fields.prompt is None) == (fields.messages is None):
        raise RequestError("prompt", "give either prompt (text or token ids) or messages")
    if fields.messages is not None:
        for index, message in enumerate(fields.messages):
            refuse_unserved_in_message(index, message.model_extra or {})
        return await context.prompts.chat([message.for_template() for message in fields.messages])
    if isinstance(fields.prompt, str):
        return await context.prompts.text(fields.prompt)
    return fields.prompt or []


def _explain(context: Context, fields: ExplainFields, prompt_ids: list[int]) -> Explanation:
    mode = Mode(fields.mode) if fields.mode else None
    lora = None if fields.model is None else context.served.lora(fields.model)
    try:
        return context.serving.engine.explain(prompt_ids, fields.cache_salt or "", mode, lora)
    except RequestError as error:
        if error.param == "salt":
            raise RequestError("cache_salt", error.reason) from None
        raise
