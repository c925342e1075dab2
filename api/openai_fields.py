"""Fields of the OpenAI API that are not served: refused when they would change the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvstore.errors import RequestError

# A field that would change the answer, with the values under which it does not.
NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),  # of chats; a completion takes it
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "function_call": (None, "none", "auto"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "prediction": (None,),
    "presence_penalty": (None, 0),
    "reasoning_effort": (None,),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "top_logprobs": (None, 0),  # of completions; a chat takes it
    "verbosity": (None,),
    "web_search_options": (None,),
}
# Fields that say something about the caller or the bill, never about the answer.
HARMLESS = frozenset({
    "metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "safety_identifier", "service_tier", "store", "user",
})  # fmt: skip
# What a client's own copy of an answer carries back in a message.
_MESSAGE_NEUTRAL = ("refusal", "annotations", "audio", "function_call", "tool_calls")


def refuse_unserved(fields: Mapping[str, Any], accepted: frozenset[str] = HARMLESS) -> None:
    """Raise ``RequestError`` for the first field that is not served here."""
    for name, value in fields.items():
        if name in accepted:
            continue
        if name not in NEUTRAL_VALUES:
            raise RequestError(name, "is not a field of this API; remove it")
        if not any(value == neutral and type(value) is type(neutral) for neutral in NEUTRAL_VALUES[name]):
            raise RequestError(name, "is not supported here with this value; leave it out")


def refuse_unserved_in_message(index: int, fields: Mapping[str, Any]) -> None:
    """Raise ``RequestError`` for a message that carries more than text."""
    for name, value in fields.items():
        if name not in _MESSAGE_NEUTRAL or value not in (None, []):
            raise RequestError(f"messages[{index}].{name}", "is not supported here; send text alone")
