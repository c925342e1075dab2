"""The forms of traces that are read, one JSON object a line.

``hash_ids`` names the blocks of the prompt, in order; the last one may be partial. Mooncake's form counts
time in milliseconds and has blocks of 512 tokens; ``session`` and ``stop`` may be added. Qwen-Bailian's is
known by its ``chat_id``, counts time in seconds and has blocks of 16. What a server has recorded is known
by its first line, which says how large its blocks are. Other fields are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine_adapter.trace_file import FORM, VERSION
from kvstore.retention import MAX_LIFETIME_S

Hash = int | str

_MOST_TOKENS = 10**9
_MOST_MS = 1e15
_MOST_S = 1e10
_NO_PARENT = -1


class MalformedError(ValueError):
    """A line that is not a request; the message says why."""


class NotJsonError(MalformedError):
    """A line that is no JSON at all, as one that is cut off."""


@dataclass(frozen=True, slots=True)
class Form:
    """What is fixed in a form: the size of its blocks, and its unit of time in milliseconds.

    One that a server has recorded may be out of order, and gives blocks ``ttl_s`` where a request does not.
    """

    block_tokens: int
    unit_ms: float
    is_recorded: bool = False
    ttl_s: float | None = None


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
    answer: Sequence[Hash] = ()
    output_tokens: int = 0
    ttl_s: float | None = None
    end_session: bool = False
    expected_pause_s: float | None = None


def parse_line(line: bytes) -> Mapping[str, Any]:
    """Return the JSON object of a line. Raises ``MalformedError``."""
    try:
        parsed = json.loads(line)
    except json.JSONDecodeError as error:
        raise NotJsonError(f"it is not JSON: {error.msg}, at character {error.pos + 1}") from None
    except UnicodeDecodeError:
        raise NotJsonError("it is no text (traces are plain or compressed by xz)") from None
    except (ValueError, RecursionError) as error:
        raise NotJsonError(f"it is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise MalformedError("it is not a JSON object")
    return parsed


def form_of(parsed: Mapping[str, Any]) -> Form:
    """Return the form of a trace by its first line. Raises ``MalformedError`` for one that is not known."""
    if "form" not in parsed:
        return BAILIAN if "chat_id" in parsed else MOONCAKE
    form, version = parsed["form"], parsed.get("version")
    if (form, version) != (FORM, VERSION):
        known = f"{FORM} of version {VERSION}"
        raise MalformedError(f"its form is {_shown(form)} of version {_shown(version)}; known is {known}")
    block_tokens = _tokens(parsed, "block_tokens")
    if not block_tokens:
        raise MalformedError("block_tokens must be above 0")
    return Form(block_tokens, 1.0, is_recorded=True, ttl_s=_ttl_s(parsed, "default_ttl_s"))


def parse_fields(parsed: Mapping[str, Any], form: Form) -> Fields:
    """Return what a line says. Raises ``MalformedError`` for what is missing or cannot be."""
    if form.is_recorded and "form" in parsed:
        raise MalformedError("another recording begins here, whose digests tell nothing of those before")
    chat = parent_chat = None
    if form is BAILIAN:
        chat = _name(parsed, "chat_id")
        parent_chat = _name(parsed, "parent_chat_id")
        if chat is None:
            raise MalformedError("chat_id is missing")
    fields = Fields(
        _time_ms(parsed, form),
        _tokens(parsed, "input_length"),
        _hashes(parsed, "hash_ids"),
        _name(parsed, "session"),
        _stop(parsed),
        chat,
        None if parent_chat == _NO_PARENT else parent_chat,
    )
    return _with_what_was_recorded(fields, parsed, form) if form.is_recorded else fields


def _with_what_was_recorded(fields: Fields, parsed: Mapping[str, Any], form: Form) -> Fields:
    ttl_s = _ttl_s(parsed, "ttl_s")
    return replace(
        fields,
        answer=_hashes(parsed, "answer_ids") if "answer_ids" in parsed else (),
        output_tokens=_tokens(parsed, "output_length"),
        ttl_s=form.ttl_s if ttl_s is None else ttl_s,
        end_session=parsed.get("end_session") is True,
        expected_pause_s=_seconds(parsed, "expected_pause_s"),
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


def _seconds(parsed: Mapping[str, Any], name: str) -> float | None:
    value = parsed.get(name)
    if value is None:
        return None
    if type(value) not in {int, float} or not 0 <= value <= _MOST_S:
        raise _odd(parsed, name, "seconds, from 0 on")
    return float(value)


def _ttl_s(parsed: Mapping[str, Any], name: str) -> float | None:
    ttl_s = _seconds(parsed, name)
    if ttl_s is not None and not 0 < ttl_s <= MAX_LIFETIME_S:
        raise _odd(parsed, name, "seconds, above 0 and at most a century")
    return ttl_s


def _hashes(parsed: Mapping[str, Any], name: str) -> Sequence[Hash]:
    value = parsed.get(name)
    if not isinstance(value, list) or not {int, str}.issuperset(map(type, value)):
        raise _odd(parsed, name, "a list of numbers or strings")
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
