"""Files in TOML that an operator writes, which may hold secrets: nothing of them is repeated in an error."""

from __future__ import annotations

import logging
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from kvstore.errors import ConfigError

_REASONS = {
    "extra_forbidden": "there is no such field",
    "missing": "must be given",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}
_log = logging.getLogger(__name__)


class Entry(BaseModel):
    """A part of such a file."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


_E = TypeVar("_E", bound=Entry)


def read_toml_file(path: Path, setting: str, kind: type[_E]) -> _E:
    """Return what the file at ``path`` says. Raises ``ConfigError``, which names the ``setting``."""
    try:
        return kind.model_validate(_values(path, setting))
    except ValidationError as error:
        raise ConfigError(setting, f"{path}: {_told(error.errors(include_url=False)[0])}") from None


def in_one_line(text: str) -> str:
    """Return text with names of the file in it, which may hold line ends and what drives a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def warn_of_readers(path: Path, secrets: str, remedy: str) -> None:
    """Warn in the log when others can read a file that holds ``secrets``."""
    if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        _log.warning("%s holds %s and others can read it: chmod 600, or %s", path, secrets, remedy)


def _values(path: Path, setting: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(setting, f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(setting, f"{path} is not valid TOML: it is not UTF-8") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, or a number of too many digits
        raise ConfigError(setting, f"{path} is not valid TOML: {error}") from None


def _told(fault: Any) -> str:
    """Return where an entry stands and what is wrong with it, in one line, without what it holds."""
    place = in_one_line(".".join(str(part) for part in fault["loc"] if part != "[key]"))
    if fault["type"] in _REASONS:
        return f"{place}: {_REASONS[fault['type']]}"
    reason = str(fault["msg"]).removeprefix("Value error, ").replace("Input should", "must")
    return f"{place}: {reason}" if place else reason
