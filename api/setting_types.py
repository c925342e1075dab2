"""What a setting may be, how its text is read and within which bounds, and how one is declared."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from api.quantities import parse_bytes
from kvstore.retention import MAX_LIFETIME_S

_MOST_BYTES = 2**50


def _read_bytes(value: object) -> object:
    return parse_bytes(value) if isinstance(value, str) else value


def _naming(what: str) -> BeforeValidator:
    def named(path: object) -> object:
        if path == "":
            raise ValueError(f"must name a {what}")
        return path

    return BeforeValidator(named)


def _sendable(secret: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[!-~]+", secret.get_secret_value()):
        raise ValueError("must be visible ASCII characters alone (no space, no line end), as in a header")
    return secret


def _none_for(word: str) -> BeforeValidator:
    return BeforeValidator(lambda value: None if value == word else value)


Bytes = Annotated[int, Field(ge=0, le=_MOST_BYTES), BeforeValidator(_read_bytes)]
AutoBytes = Annotated[
    Annotated[int, Field(gt=0, le=_MOST_BYTES), BeforeValidator(_read_bytes)] | None, _none_for("auto")
]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
TimeToLive = Annotated[
    Annotated[float, Field(gt=0, le=MAX_LIFETIME_S, allow_inf_nan=False)] | None, _none_for("never")
]
TierTimeToLive = Annotated[
    Annotated[float, Field(gt=0, le=MAX_LIFETIME_S, allow_inf_nan=False)] | Literal["default"] | None,
    _none_for("never"),
]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Name = Annotated[str, Field(min_length=1)]
Folder = Annotated[Path, _naming("folder"), AfterValidator(Path.expanduser)]
File = Annotated[Path, _naming("file"), AfterValidator(Path.expanduser)]
Secret = Annotated[SecretStr, Field(min_length=1)]
Token = Annotated[Secret, AfterValidator(_sendable)]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KVDtype = Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8"]
WriteMode = Literal["through", "back", "second-use"]
ModeName = Literal["off", "observe", "verify", "serve"]


def setting(group: str, default: Any, description: str, shown: str | None = None) -> Any:
    """Declare a setting under the heading ``group``; ``shown`` is how its default reads when computed."""
    facts: dict[str, Any] = {"group": group, "shown": shown}
    if callable(default):
        return Field(default_factory=default, description=description, json_schema_extra=facts)
    return Field(default, description=description, json_schema_extra=facts, validate_default=False)


def tier_ttl(group: str) -> Any:
    """Declare the default TTL of a tier."""
    return setting(group, "default", "Another default_ttl_s for this tier; never for no end.")
