"""What is told of each setting, on its page and in the help of commands."""

from __future__ import annotations

from typing import Any, cast, get_origin

from api.quantities import format_bytes
from api.settings import Settings


def setting_group(name: str) -> str:
    """Return the heading that a setting stands under."""
    return str(_facts(name)["group"])


def shown_default(name: str) -> str:
    """Return a setting's default for people, the same on every machine."""
    default = Settings.model_fields[name].default
    if shown := _facts(name)["shown"]:
        return str(shown)
    if default is None:
        return "none"
    if isinstance(default, float):
        return f"{default:g}"
    return format_bytes(default) if name.endswith("_bytes") else str(default)


def is_repeatable(name: str) -> bool:
    """Whether a setting's flag may be given several times."""
    return get_origin(Settings.model_fields[name].annotation) is dict


def is_secret(name: str) -> bool:
    """Whether a setting is never shown."""
    return "SecretStr" in str(Settings.model_fields[name].annotation)


def _facts(name: str) -> dict[str, Any]:
    return cast("dict[str, Any]", Settings.model_fields[name].json_schema_extra)
