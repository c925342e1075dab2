"""Settings of an adapter, as a foreign engine hands them over: a frozen dataclass of named values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, TypeVar

from kvstore.errors import ConfigError

S = TypeVar("S")

_MOST = 1e18


def setting(default: Any, meaning: str) -> Any:
    """Declare a field with what it means, which its page repeats."""
    return field(default=default, metadata={"meaning": meaning})


def parsed(kind: type[S], given: Mapping[str, Any]) -> S:
    """Return the settings that ``given`` names. Raises ``ConfigError`` for unknown names, no text for one."""
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]  # it is a dataclass
    for name, value in given.items():
        if name not in known:
            raise ConfigError(name, f"is no setting; there are {', '.join(known)}")
        if isinstance(known[name].default, str) and not isinstance(value, str):
            raise ConfigError(name, "must be a text")
    return kind(**given)


def is_number(value: object) -> bool:
    """Say whether a value is a number to reckon with, which true, false, and what JSON calls NaN are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MOST
