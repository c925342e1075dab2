"""Settings of an adapter, as a foreign engine hands them over: a frozen dataclass of named values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, field, fields
from typing import Any, NamedTuple, TypeVar

from engine_adapter.engine.request import Mode
from kvstore.errors import ConfigError
from kvstore.retention import MAX_LIFETIME_S

S = TypeVar("S")

_TEXT = "a text"
_MOST = 10**18  # of bytes, threads and rates alike
_LEAST_S, _LONGEST_WAIT_S = 0.001, 3600


class Bounds(NamedTuple):
    """What a value may be."""

    least: float = 0
    most: float = _MOST
    one_of: tuple[str, ...] = ()


ANY = Bounds()
COUNT = Bounds(1)
MODE = Bounds(one_of=tuple(mode.value for mode in Mode))
WAIT = Bounds(0, _LONGEST_WAIT_S)
DEADLINE = Bounds(_LEAST_S, _LONGEST_WAIT_S)
SHARE = Bounds(0, 1)
LIFETIME = Bounds(_LEAST_S, MAX_LIFETIME_S)


def setting(default: Any, meaning: str, bounds: Bounds = ANY) -> Any:
    """Declare a field with what it means, which its page repeats. Its default tells its type."""
    return field(default=default, metadata={"meaning": meaning, "bounds": bounds})


def parsed(kind: type[S], given: Mapping[str, Any]) -> S:
    """Return the settings that ``given`` names. Raises ``ConfigError`` for one that is none or cannot be."""
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]  # it is a dataclass
    for name in given:
        if name not in known:
            raise ConfigError(name, f"is no setting; there are {', '.join(known)}")
    return kind(**given)


def check(settings: Any) -> None:
    """Raise ``ConfigError`` for the first value of another type than its default's, or out of its bounds."""
    for each in fields(settings):
        value = getattr(settings, each.name)
        if not _is_right(each, value):
            # A text may be a secret.
            shown = "" if _wanted(each) == _TEXT else f", not {value!r}"
            raise ConfigError(each.name, f"must be {_wanted(each)}{shown}")


def require_room(settings: Any, *media: str) -> None:
    """Raise ``ConfigError`` where blocks could be kept nowhere: each of ``media`` is nothing."""
    if not any(getattr(settings, name) for name in media):
        raise ConfigError("host_bytes", f"must be more than 0 where there is no {' or '.join(media[1:])}")


def _is_right(each: Field[Any], value: Any) -> bool:
    bounds: Bounds = each.metadata["bounds"]
    if isinstance(each.default, str):
        return isinstance(value, str) and (not bounds.one_of or value in bounds.one_of)
    if value is None:
        return each.default is None
    is_number = type(value) is int or (type(value) is float and not isinstance(each.default, int))
    return is_number and bounds.least <= value <= bounds.most


def _wanted(each: Field[Any]) -> str:
    bounds: Bounds = each.metadata["bounds"]
    if isinstance(each.default, str):
        return f"one of {', '.join(bounds.one_of)}" if bounds.one_of else _TEXT
    kind = "a whole number" if isinstance(each.default, int) else "a number"
    reach = f"of at least {bounds.least:g}"
    if bounds.most < _MOST:
        reach = f"from {bounds.least:g} to {bounds.most:.10g}"
    return f"{kind} {reach}{', or unset' if each.default is None else ''}"
