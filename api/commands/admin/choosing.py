"""How commands name blocks: by keys, by what they have in common, or by a prompt."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from api.commands.parameters import given, replacing
from api.commands.texts import text_in, text_of
from api.quantities import parse_duration
from kvstore.errors import ConfigError
from kvstore.namespace import tenant_digest

_BLOCKS = "Which blocks"
_PROMPT = "Or those of a prompt (where a model is served)"
_AGE = "30d, 12h, 15min, 90s"


def _option(panel: str, help_text: str, *names: str, **facts: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, **facts)


_TENANT = _option(
    _BLOCKS, "Of this tenant: its digest, unsalted, or @NAME for a token's tenant.", metavar="TENANT"
)
_MODEL = _option(
    _BLOCKS, "Of this model: its label, or how the digest of its weights begins.", metavar="MODEL"
)
_NAMESPACE = _option(_BLOCKS, "Of this namespace.", metavar="DIGEST")
_PREFIX = _option(_BLOCKS, "This block and all that follow it.", metavar="KEY")
_IN_TIER = _option(_BLOCKS, "That this tier has.", metavar="TIER")
_OLDER = _option(_BLOCKS, "Stored at least so long ago.", metavar=_AGE)
_YOUNGER = _option(_BLOCKS, "Stored at most so long ago.", metavar=_AGE)
_IDLE = _option(_BLOCKS, "Not used for at least so long.", metavar=_AGE)
_USED = _option(_BLOCKS, "Used within so long.", metavar=_AGE)
_PINNED = _option(_BLOCKS, "That are pinned, or are not.", "--pinned/--not-pinned")
_KEYS = typer.Argument(help="Their keys; - reads them from stdin, one a line.", metavar="[KEY]...")
_ALL = _option(_BLOCKS, "All there are.", "--all")
_TEXT = _option(_PROMPT, "This prompt's.", "--prompt", "-p")
_FILE = _option(_PROMPT, "That of a file; - reads stdin.", metavar="PATH")
_CHAT = _option(_PROMPT, "As one message in the model's chat template.", "--chat")
_MESSAGES = _option(_PROMPT, "A chat's: a file with its messages as JSON; - reads stdin.", metavar="PATH")
_SALT = _option(_PROMPT, "Its cache_salt; others on this machine can see it meanwhile.")

FILTER: Mapping[str, Any] = {
    "tenant": Annotated[str | None, _TENANT],
    "model": Annotated[str | None, _MODEL],
    "namespace": Annotated[str | None, _NAMESPACE],
    "prefix": Annotated[str | None, _PREFIX],
    "in_tier": Annotated[str | None, _IN_TIER],
    "older_than": Annotated[str | None, _OLDER],
    "younger_than": Annotated[str | None, _YOUNGER],
    "idle_for": Annotated[str | None, _IDLE],
    "used_within": Annotated[str | None, _USED],
    "pinned": Annotated[bool | None, _PINNED],
}
_NAMED: Mapping[str, Any] = {
    "keys": Annotated[list[str] | None, _KEYS],
    "everything": (Annotated[bool, _ALL], False),
    "prompt": Annotated[str | None, _TEXT],
    "file": Annotated[str | None, _FILE],
    "chat": (Annotated[bool, _CHAT], False),
    "messages": Annotated[str | None, _MESSAGES],
    "salt": Annotated[str | None, _SALT],
}


def takes_filter(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the flags that say what blocks have in common; it gets ``wanted``, a filter's fields."""
    return replacing("wanted", FILTER, filter_fields)(command)


def takes_selection(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command all ways of naming blocks; it gets ``selection``, as the routes take it."""
    return replacing("selection", {**_NAMED, **FILTER}, selection_of)(command)


def filter_fields(
    *,
    tenant: str | None,
    in_tier: str | None,
    older_than: str | None,
    younger_than: str | None,
    idle_for: str | None,
    used_within: str | None,
    **same: Any,
) -> dict[str, Any]:
    """Return a filter's fields, those that were given. Raises ``ConfigError``."""
    ages = {
        "min_age_s": ("older_than", older_than),
        "max_age_s": ("younger_than", younger_than),
        "min_idle_s": ("idle_for", idle_for),
        "max_idle_s": ("used_within", used_within),
    }
    fields = {**same, "tenant": tenant_named(tenant), "tier": in_tier}
    fields |= {name: duration(flag, text) for name, (flag, text) in ages.items()}
    return given(fields)


def selection_of(
    *,
    keys: list[str] | None,
    everything: bool,
    prompt: str | None,
    file: str | None,
    chat: bool,
    messages: str | None,
    salt: str | None,
    **filters: Any,
) -> dict[str, Any]:
    """Return how the flags name blocks. Raises ``ConfigError`` where they name none, or in two ways."""
    text = text_of(prompt, file)
    if text is None and messages is None:
        _refuse_lone(chat=chat, salt=salt)
        return _stored(keys, filter_fields(**filters), everything=everything)
    model = filters.pop("model")
    if (
        keys
        or everything
        or filter_fields(model=None, **filters)
        or (text is not None and messages is not None)
    ):
        raise ConfigError(
            "selection", "name blocks in one way: by keys, by what they have in common, or by a prompt"
        )
    if messages is not None or chat:
        named: dict[str, Any] = {"messages": _messages_in(messages) if messages else [_message(text)]}
    else:
        named = {"prompt": text}
    return named | given({"model": model, "cache_salt": salt})


def tenant_named(tenant: str | None) -> str | None:
    """Return a tenant's digest; ``@NAME`` is one of the file of tokens."""
    return tenant_digest(tenant[1:]) if tenant and tenant.startswith("@") else tenant


def duration(flag: str, text: str | None) -> float | None:
    """Return the seconds that a flag's text names. Raises ``ConfigError``."""
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise ConfigError(flag, f"{text!r}: {error}") from None


def _stored(keys: list[str] | None, fields: dict[str, Any], *, everything: bool) -> dict[str, Any]:
    if bool(keys) + bool(fields) + everything > 1:
        raise ConfigError(
            "selection", "name blocks either by keys, or by what they have in common, or all of them"
        )
    if keys:
        return {"keys": _keys_from_stdin() if keys == ["-"] else keys}
    if not fields and not everything:
        raise ConfigError(
            "selection", "names no blocks: give keys, flags such as --model, or --all (see --help)"
        )
    return {"filter": fields}


def _keys_from_stdin() -> list[str]:
    keys = sys.stdin.read().split()
    if not keys:
        raise ConfigError("keys", "stdin has none")
    return keys


def _messages_in(path: str) -> list[Any]:
    try:
        messages = json.loads(text_in(path))
    except ValueError:
        raise ConfigError("messages", f"{path} is not JSON") from None
    if not isinstance(messages, list):
        raise ConfigError("messages", f"{path} must hold a list of messages")
    return messages


def _message(text: str | None) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _refuse_lone(*, chat: bool, salt: str | None) -> None:
    given = "chat" if chat else "salt" if salt is not None else None
    if given:
        raise ConfigError(given, "belongs to a prompt; give --prompt, --file or --messages")
