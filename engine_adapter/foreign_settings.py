"""Settings of an adapter, as a foreign engine hands them over: a frozen dataclass of named values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, Protocol, TypeVar

from kvstore.errors import ConfigError
from kvstore.retention import MAX_LIFETIME_S

S = TypeVar("S")

_MOST_WAIT_S = 3600.0


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
    """Say whether a value is a finite number, which true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


class Times(Protocol):
    """Settings that say how long to wait, and how long to keep."""

    @property
    def lookup_deadline_s(self) -> float: ...

    @property
    def load_deadline_s(self) -> float: ...

    @property
    def ttl_s(self) -> float | None: ...


def require_times(settings: Times) -> None:
    """Raise ``ConfigError`` for a time that cannot be: in none no load comes, and no wait is for ever."""
    wait_s, load_s, ttl_s = settings.lookup_deadline_s, settings.load_deadline_s, settings.ttl_s
    if not (is_number(wait_s) and 0 <= wait_s <= _MOST_WAIT_S):
        raise ConfigError(
            "lookup_deadline_s", f"must be at least 0 and at most {_MOST_WAIT_S:.0f}, not {wait_s!r}"
        )
    if not (is_number(load_s) and 0 < load_s <= _MOST_WAIT_S):
        raise ConfigError(
            "load_deadline_s", f"must be above 0 and at most {_MOST_WAIT_S:.0f}, not {load_s!r}"
        )
    if ttl_s is not None and not (is_number(ttl_s) and 0 < ttl_s <= MAX_LIFETIME_S):
        raise ConfigError("ttl_s", f"must be above 0 and at most {MAX_LIFETIME_S}, or unset, not {ttl_s!r}")
