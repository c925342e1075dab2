"""Requests as the OpenAI API shapes them, with this project's own fields beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Json, model_validator

from api.prompt_schema import TYPES_ALONE, Message, Text, the_one_prompt
from api.setting_types import ModeName
from engine_adapter.engine.constraints import ANY_OBJECT

_EXAMPLE: dict[str, Any] = {"model": "SmolLM2-135M-Instruct", "max_tokens": 16, "temperature": 0.0}
_MESSAGE: dict[str, Any] = {"role": "user", "content": "What is the capital of France?"}


class KvFields(BaseModel):
    """How a request uses the cache."""

    model_config = ConfigDict(extra="forbid", **TYPES_ALONE)

    cache: Literal["off", "read", "write", "on"] = "on"
    ttl_s: float | None = None
    session: Text | None = None
    end_session: bool = False
    expected_pause_s: float | None = None
    mode: ModeName | None = None


class StreamOptions(BaseModel):
    """What a stream carries beside the text."""

    model_config = TYPES_ALONE

    include_usage: bool = False


class NamedSchema(BaseModel):
    """A JSON schema; its name and description, and whether it is strict, change nothing: it always is."""

    model_config = TYPES_ALONE

    as_object: dict[str, Any] = Field(alias="schema")


class ResponseFormat(BaseModel):
    """The form of answers, as the OpenAI API asks for it."""

    model_config = ConfigDict(extra="forbid", **TYPES_ALONE)

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _has_the_schema_it_names(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with the type json_schema, and with no other")
        return self

    @property
    def as_schema(self) -> Mapping[str, Any]:
        """The schema of answers that are JSON."""
        return ANY_OBJECT if self.json_schema is None else self.json_schema.as_object


class StructuredOutputs(BaseModel):
    """The form of answers, as vLLM asks for it."""

    model_config = ConfigDict(extra="forbid", **TYPES_ALONE)

    json_schema: dict[str, Any] | Json[dict[str, Any]] | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: Text | None = None
    choice: list[Text] | None = None

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if all(asked is None for _, asked in self):
            raise ValueError("give one of json, json_object, regex and choice, or leave it out")
        return self

    @property
    def as_schema(self) -> Mapping[str, Any] | None:
        """The schema of answers that are JSON; ``None``: they need not be."""
        return ANY_OBJECT if self.json_schema is None and self.json_object else self.json_schema


class GenerationFields(BaseModel):
    """What both kinds of generation take; ranges are the engine's, other fields ``openai_fields``'s."""

    model_config = ConfigDict(extra="allow", **TYPES_ALONE)

    model: Text
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: Text | list[Text] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    prompt_logprobs: int | None = None
    n: int | None = None
    priority: int | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    cache_salt: Text | None = None
    kv: KvFields = KvFields()

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk of its own for the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionFields(GenerationFields):
    """The body of ``POST /v1/completions``; a prompt is text or token ids, maybe in a list of one."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{**_EXAMPLE, "prompt": "The capital of France is"}]}
    )

    prompt: Annotated[Text | list[int], BeforeValidator(the_one_prompt)]
    logprobs: int | None = None
    best_of: int | None = None


class ChatFields(GenerationFields):
    """The body of ``POST /v1/chat/completions``."""

    model_config = ConfigDict(json_schema_extra={"examples": [{**_EXAMPLE, "messages": [_MESSAGE]}]})

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
