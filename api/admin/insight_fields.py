"""Bodies of the routes that ask for explanations and set the mode."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field

from api.examples import body_example
from api.prompt_schema import Message, Text, the_one_prompt
from api.setting_types import ModeName


class ModeFields(BaseModel):
    """The body of ``PUT /admin/mode``."""

    model_config = body_example({"mode": "verify"})

    mode: ModeName


class ExplainFields(BaseModel):
    """The body of ``POST /admin/explain``: a prompt as text or token ids, or the messages of a chat."""

    model_config = body_example({"prompt": "Once upon a time"})

    model: Text | None = None
    prompt: Annotated[Text | list[int] | None, BeforeValidator(the_one_prompt)] = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    cache_salt: Text | None = None
    mode: ModeName | None = None
