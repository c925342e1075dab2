"""The administration's part for a server with a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from api.admin.insight_fields import ExplainFields
from api.admin.selection import ByMessages, ByPrompt
from api.context import Context
from api.history import Reading
from api.history_readings import serving_reading
from api.kv_reply import account_body, explanation_body, recording_body, shadows_body
from api.openai_fields import refuse_unserved_in_message
from api.prompt_schema import Message
from api.setting_types import ModeName
from engine_adapter.engine.audit import Audit
from engine_adapter.engine.explaining import Explanation
from engine_adapter.engine.request import CacheUse, Mode, Request, Sampling
from kvstore.errors import RequestError
from kvstore.remote.tenancy import Tenant

_T = TypeVar("_T")
_FLUSH_S = 10.0


class PromptBlocks(NamedTuple):
    """The keys of a prompt's whole blocks, and what it is made of; ``compute`` stores them, and blocks."""

    keys: Sequence[bytes]
    num_tokens: int
    block_tokens: int
    compute: Callable[[], None]


class ServedModel:
    """What only a server with a model can tell or do; a store alone has none of it.

    Bodies are JSON, as ``insight_views`` describes them. ``context`` is the service's.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.serving.engine

    def mode(self) -> ModeName:
        """Return the mode of requests that name none."""
        mode: ModeName = self._engine.mode.value
        return mode

    def set_mode(self, mode: ModeName) -> None:
        """Set it, for requests from now on."""
        self._engine.mode = Mode(mode)

    def plans(self, tenant: Tenant) -> Sequence[dict[str, Any]]:
        """Return what was decided about the caller's last requests, the latest first."""
        accounts = self._engine.recent_plans()
        return [account_body(account) for account in accounts if tenant.name in {"", account.tenant}]

    async def explain(self, tenant: Tenant, fields: ExplainFields) -> dict[str, Any]:
        """Return what would be done with a prompt. Raises what the engine raises for one."""
        if (fields.prompt is None) == (fields.messages is None):
            raise RequestError("prompt", "give either prompt (text or token ids) or messages")
        prompt_ids = await self._prompt_ids(fields.prompt, fields.messages)
        explained = await self._context.explaining.run(lambda: self._explain(tenant, fields, prompt_ids))
        return explanation_body(explained)

    def learning(self) -> dict[str, Any]:
        """Return what shadow policies found, and how far the recording has come."""
        watching = self._context.serving.watching
        shadows, recording = watching.shadows(), watching.recording()
        return {
            "shadows": None if shadows is None else shadows_body(shadows),
            "recording": None if recording is None else recording_body(recording, watching.num_unrecorded),
        }

    def audit(self) -> Audit:
        """Return what the audit in idle time has found; blocks for some milliseconds."""
        return self._engine.rechecker.facts()

    def set_audit_share(self, share: float) -> None:
        """Set how much of the idle time it may take. Raises ``ConfigError`` where it was 0 at the start."""
        self._engine.rechecker.set_share(share)

    def reading(self) -> Reading:
        """Return what the history takes note of now."""
        return serving_reading(self._engine.statistics(), self._context.serving.store.statistics())

    async def blocks_of(self, tenant: Tenant, chosen: ByPrompt | ByMessages) -> PromptBlocks:
        """Return a prompt's blocks. Raises what the engine raises for one."""
        messages = chosen.messages if isinstance(chosen, ByMessages) else None
        prompt = chosen.prompt if isinstance(chosen, ByPrompt) else None
        prompt_ids = await self._prompt_ids(prompt, messages)
        lora, salt = self._lora(chosen.model), chosen.cache_salt or ""
        keys = await self._context.explaining.run(
            lambda: _in_words_of_the_body(self._engine.prefix_keys, prompt_ids, salt, lora, tenant.name)
        )
        block_tokens = self._context.serving.model_facts.kv_shape.block_tokens
        # What the engine's own pool has is stored nowhere else unless it is computed again.
        request = Request(
            prompt_ids, Sampling(max_tokens=1), CacheUse.WRITE, salt=salt, lora=lora, tenant=tenant.name
        )
        return PromptBlocks(keys, len(prompt_ids), block_tokens, lambda: self._compute(request))

    def clear_pool(self) -> None:
        """Drop what the engine's own pool keeps for nobody; blocks for a step at most."""
        self._engine.clear_pool()

    def write_computed(self) -> None:
        """Have what was just computed written to the tiers; blocks for some seconds at most."""
        self._engine.flush(_FLUSH_S)

    async def _prompt_ids(self, prompt: str | list[int] | None, messages: list[Message] | None) -> list[int]:
        if messages is not None:
            for index, message in enumerate(messages):
                refuse_unserved_in_message(index, message.model_extra or {})
            return await self._context.prompts.chat([message.for_template() for message in messages])
        if isinstance(prompt, str):
            return await self._context.prompts.text(prompt)
        return prompt or []

    def _explain(self, tenant: Tenant, fields: ExplainFields, prompt_ids: list[int]) -> Explanation:
        mode = Mode(fields.mode) if fields.mode else None
        lora, salt = self._lora(fields.model), fields.cache_salt or ""
        return _in_words_of_the_body(self._engine.explain, prompt_ids, salt, mode, lora, tenant.name)

    def _compute(self, request: Request) -> None:
        self._engine.generate(request)
        self.write_computed()

    def _lora(self, model: str | None) -> str | None:
        return None if model is None else self._context.served.lora(model)


def _in_words_of_the_body(call: Callable[..., _T], *arguments: object) -> _T:
    """Call with a ``RequestError`` that names the body's field instead of the engine's."""
    try:
        return call(*arguments)
    except RequestError as error:
        if error.param == "salt":
            raise RequestError("cache_salt", error.reason) from None
        raise
