"""The forms of traces that are read, one JSON object a line.

``hash_ids`` names the blocks of the prompt, in order; the last one may be partial. Mooncake's form counts
time in milliseconds and has blocks of 512 tokens; ``session`` and ``stop`` may be added. Qwen-Bailian's is
known by its ``chat_id``, counts time in seconds and has blocks of 16. Other fields are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Hash = int | str

_MOST_TOKENS = 10**9
_MOST_MS = 1e15
_NO_PARENT = -1


class MalformedError(ValueError):
    """A line that is not a request; the message says why."""


@dataclass(frozen=True, slots=True)
class Form:
    """What is fixed in a form: the size of its blocks, and its unit of time in milliseconds."""

    block_tokens: int
    unit_ms: float


MOONCAKE = Form(block_tokens=512, unit_ms=1.0)
BAILIAN = Form(block_tokens=16, unit_ms=1000.0)


@dataclass(frozen=True, slots=True)
class Fields:
    """What a line says of one request. ``chat`` and ``parent_chat`` are Qwen-Bailian's."""

    at_ms: float
    input_tokens: int
    hashes: Sequence[Hash]
    session: Hash | None
    stop: str | None
    chat: Hash | None
    parent_chat: Hash | None


def parse_line(line: bytes) -> Mapping[str, Any]:
    """Return the JSON object of a line. Raises ``MalformedError``."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"it is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise MalformedError("it is not a JSON object")
    return parsed


def form_of(parsed: Mapping[str, Any]) -> Form:
    """Return the form of a trace by its first line."""
    return BAILIAN if "chat_id" in parsed else MOONCAKE


def parse_fields(parsed: Mapping[str, Any], form: Form) -> Fields:
    """Return what a line says. Raises ``MalformedError`` for what is missing or cannot be."""
    chat = parent_chat = None
    if form is BAILIAN:
        chat = _name(parsed, "chat_id")
        parent_chat = _name(parsed, "parent_chat_id")
        if chat is None:
            raise MalformedError("chat_id is missing")
    return Fields(
        _time_ms(parsed, form),
        _tokens(parsed, "input_length"),
        _hashes(parsed),
        _name(parsed, "session"),
        _stop(parsed),
        chat,
        None if parent_chat == _NO_PARENT else parent_chat,
    )


def _time_ms(parsed: Mapping[str, Any], form: Form) -> float:
    value = parsed.get("timestamp")
    if type(value) not in {int, float} or not 0 <= (value or 0) <= _MOST_MS / form.unit_ms:
        raise _odd(parsed, "timestamp", "a number from 0 on")
    return float((value or 0) * form.unit_ms)


def _tokens(parsed: Mapping[str, Any], name: str) -> int:
    value = parsed.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_TOKENS:
        raise _odd(parsed, name, "a whole number from 0 to a billion")
    return value


def _hashes(parsed: Mapping[str, Any]) -> Sequence[Hash]:
    value = parsed.get("hash_ids")
    if not isinstance(value, list) or not {int, str}.issuperset(map(type, value)):
        raise _odd(parsed, "hash_ids", "a list of numbers or strings")
    return value


def _name(parsed: Mapping[str, Any], name: str) -> Hash | None:
    value = parsed.get(name)
    if value is not None and type(value) not in {int, str}:
        raise _odd(parsed, name, "a number or a string")
    return value


def _stop(parsed: Mapping[str, Any]) -> str | None:
    value = parsed.get("stop")
    if value is not None and not isinstance(value, str):
        raise _odd(parsed, "stop", "a string")
    return value


def _odd(parsed: Mapping[str, Any], name: str, wanted: str) -> MalformedError:
    if name not in parsed:
        return MalformedError(f"{name} is missing")
    return MalformedError(f"{name} must be {wanted}, not {_shown(parsed[name])}")


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number too long for its digits, a list too deep
        return "what it is"
    return text if len(text) <= 40 else f"{text[:40]}..."
