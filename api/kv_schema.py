"""Bodies of this project's own routes."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from api.openai_schema import Message, Text, the_one_prompt
from api.setting_types import ModeName

_FIELDS = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


class ModeFields(BaseModel):
    """The body of ``PUT /kv/mode``."""

    model_config = _FIELDS

    mode: ModeName


class ExplainFields(BaseModel):
    """The body of ``POST /kv/explain``: a prompt as text or token ids, or the messages of a chat."""

    model_config = _FIELDS

    model: Text | None = None
    prompt: Annotated[Text | list[int] | None, BeforeValidator(the_one_prompt)] = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    cache_salt: Text | None = None
    mode: ModeName | None = None
