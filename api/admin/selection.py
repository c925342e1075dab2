"""How a body names blocks: by their keys, by what they have in common, or by the prompt they belong to."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from api.admin.fields import Age, Digest, Key, Keys, TierName
from api.examples import BODY, DIGEST, body_example
from api.prompt_schema import Message, Text, the_one_prompt

EXAMPLE = {"filter": {"tier": "disk", "min_idle_s": 86400.0}}
_WAYS = ("keys", "filter", "prompt", "messages")


class FilterFields(BaseModel):
    """What blocks have in common; what is not named does not matter."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    tenant: Annotated[
        str | None,
        Field(pattern=r"^([0-9a-f]{32}|unsalted)$", description="A tenant's digest, or `unsalted`."),
    ] = None
    model: Annotated[
        str | None,
        Field(
            min_length=1, max_length=256, description="A model's label, or how its weights' digest begins."
        ),
    ] = None
    namespace: Annotated[Digest | None, Field(description="A namespace's digest.")] = None
    prefix: Annotated[Key | None, Field(description="A block's key: it and all that follow it.")] = None
    tier: Annotated[TierName | None, Field(description="A tier that has them.")] = None
    min_age_s: Annotated[Age | None, Field(description="Stored at least so long ago.")] = None
    max_age_s: Annotated[Age | None, Field(description="Stored at most so long ago.")] = None
    min_idle_s: Annotated[Age | None, Field(description="Not used for at least so long.")] = None
    max_idle_s: Annotated[Age | None, Field(description="Used within so long.")] = None
    pinned: Annotated[bool | None, Field(description="Pinned ones, or others, alone.")] = None


class FilterBody(FilterFields):
    """The same in a body, where a number is no text."""

    model_config = BODY


class _Prompted(BaseModel):
    model_config = BODY

    model: Annotated[Text | None, Field(description="The model or adapter that is asked.")] = None
    cache_salt: Annotated[Text | None, Field(description="As the requests send it.")] = None


class ByKeys(BaseModel):
    """Blocks, by their keys."""

    model_config = body_example({"keys": [DIGEST]})

    keys: Keys


class ByFilter(BaseModel):
    """All blocks that have something in common."""

    model_config = body_example(EXAMPLE)

    filter: FilterBody


class ByPrompt(_Prompted):
    """A prompt's whole blocks."""

    model_config = body_example({"prompt": "You are a help desk."})

    prompt: Annotated[Text | list[int], BeforeValidator(the_one_prompt)]


class ByMessages(_Prompted):
    """A chat's whole blocks, as the model's template writes it."""

    model_config = body_example({"messages": [{"role": "system", "content": "Be brief."}]})

    messages: Annotated[list[Message], Field(min_length=1)]


def _way(value: Any) -> str | None:
    named = [way for way in _WAYS if (way in value if isinstance(value, dict) else hasattr(value, way))]
    return f"[{named[0]}]" if len(named) == 1 else None


Selection = Annotated[
    Annotated[ByKeys, Tag("[keys]")]
    | Annotated[ByFilter, Tag("[filter]")]
    | Annotated[ByPrompt, Tag("[prompt]")]
    | Annotated[ByMessages, Tag("[messages]")],
    Discriminator(
        _way,
        custom_error_type="selection",
        custom_error_message="must name blocks by one of keys, filter, prompt and messages",
    ),
]
