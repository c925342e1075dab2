"""Prompts and chats as bodies of requests carry them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict


def _well_formed(text: str) -> str:
    """Refuse half a surrogate pair, which JSON can spell and nothing can encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be well-formed Unicode") from None
    return text


def the_one_prompt(value: object) -> object:
    """Take one prompt out of a list, in which many clients send it."""
    if not isinstance(value, list) or not value or not isinstance(value[0], str | list):
        return value
    if len(value) > 1:
        raise ValueError("holds several prompts; send each in a request of its own")
    return value[0]


Text = Annotated[str, AfterValidator(_well_formed)]
TYPES_ALONE = ConfigDict(strict=True, frozen=True, hide_input_in_errors=True)


class TextPart(BaseModel):
    """A piece of a message."""

    model_config = ConfigDict(extra="forbid", **TYPES_ALONE)

    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """One message of a chat."""

    model_config = ConfigDict(extra="allow", **TYPES_ALONE)

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[TextPart]
    name: Text | None = None

    def for_template(self) -> dict[str, Any]:
        """Return the message as chat templates read it."""
        content = self.content if isinstance(self.content, str) else "".join(p.text for p in self.content)
        named = {"name": self.name} if self.name is not None else {}
        return {"role": "system" if self.role == "developer" else self.role, "content": content, **named}
