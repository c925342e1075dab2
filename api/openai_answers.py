"""What the OpenAI-compatible routes answer, for their descriptions; ``openai_reply`` writes it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from api.admin.insight_views import PlanView
from api.error_schema import Responses, errors
from api.examples import example, example_of

_USAGE = {
    "prompt_tokens": 6, "completion_tokens": 2, "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 0},
}  # fmt: skip
_KV = {
    "tokens_by_source": {"computed": 6}, "queue_s": 0.001, "ttft_s": 0.03, "itl_s": 0.01, "load_s": 0.0,
    "plan": None,
}  # fmt: skip
_CARD = {
    "id": "SmolLM2-135M-Instruct", "object": "model", "created": 1_767_225_600, "owned_by": "prefixd",
    "parent": None, "max_model_len": 8192,
}  # fmt: skip


class ModelCard(BaseModel):
    """A model that is served; an adapter's ``parent`` is the one it belongs to."""

    model_config = example(**_CARD)

    id: str
    object: str
    created: int
    owned_by: str
    parent: str | None
    max_model_len: int


class ModelList(BaseModel):
    """The model that is served, and its LoRA adapters."""

    model_config = example(object="list", data=[_CARD])

    object: str
    data: list[ModelCard]


class PromptDetails(BaseModel):
    """Of the prompt's tokens, those that were not computed."""

    model_config = example(cached_tokens=1024)

    cached_tokens: int


class Usage(BaseModel):
    """Tokens of the prompt, counted once, and of all answers."""

    model_config = example(**_USAGE)

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Kv(BaseModel):
    """Where the prompt's tokens came from, what that took in seconds, and what was planned."""

    model_config = example(**{**_KV, "plan": example_of(PlanView)})

    tokens_by_source: dict[str, int]
    queue_s: float | None
    ttft_s: float | None
    itl_s: float | None
    load_s: float
    plan: PlanView | None


class CompletionLogprobs(BaseModel):
    """How likely each token was, and the likeliest in its place."""

    model_config = example(
        tokens=[" Paris"], token_logprobs=[-0.1], top_logprobs=[{" Paris": -0.1}], text_offset=[0]
    )

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One answer."""

    model_config = example(index=0, text=" Paris.", logprobs=None, finish_reason="stop")

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    prompt_logprobs: list[dict[str, Any] | None] | None = None


class _Answer(BaseModel):
    id: str
    object: str
    created: int
    model: str
    usage: Usage
    kv: Kv


class CompletionAnswer(_Answer):
    """Answers to a prompt."""

    model_config = example(
        id="cmpl-0", object="text_completion", created=1_767_225_600, model="SmolLM2-135M-Instruct",
        choices=[example_of(CompletionChoice)], usage=_USAGE, kv=_KV,
    )  # fmt: skip

    choices: list[CompletionChoice]


class ChatMessage(BaseModel):
    """What the assistant said."""

    model_config = example(role="assistant", content="Paris.", refusal=None)

    role: str
    content: str
    refusal: str | None


class ChatChoice(BaseModel):
    """One answer."""

    model_config = example(index=0, message=example_of(ChatMessage), logprobs=None, finish_reason="stop")

    index: int
    message: ChatMessage
    logprobs: dict[str, Any] | None
    finish_reason: str | None


class ChatAnswer(_Answer):
    """Answers to a chat."""

    model_config = example(
        id="chatcmpl-0", object="chat.completion", created=1_767_225_600, model="SmolLM2-135M-Instruct",
        choices=[example_of(ChatChoice)], usage=_USAGE, kv=_KV,
    )  # fmt: skip

    choices: list[ChatChoice]
    prompt_logprobs: list[dict[str, Any] | None] | None = None


def answered(model: type[BaseModel]) -> Responses:
    """Return the description of what a route that generates may answer."""
    stream = {
        "schema": {"type": "string", "description": "Events, each `data:` with a chunk; then `[DONE]`."}
    }
    return {
        200: {
            "model": model,
            "description": "The answers whole, or as a stream where `stream` asks for it.",
            "content": {"text/event-stream": stream},
        },
        **errors(403, 404, 429, 499),
    }
