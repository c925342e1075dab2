"""Texts that commands are given: on the command line, in a file, or on stdin."""

from __future__ import annotations

import sys
from pathlib import Path

from kvstore.errors import ConfigError


def text_of(prompt: str | None, file: str | None) -> str | None:
    """Return the prompt that the flags name; ``None``: none. Raises ``ConfigError``."""
    if prompt is not None and file is not None:
        raise ConfigError("prompt", "give either --prompt or --file")
    return checked("prompt", prompt) if file is None else text_in(file)


def text_in(file: str) -> str:
    """Return a file's text; ``-`` is stdin. Raises ``ConfigError``."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError("file", f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError("file", f"{file} is not UTF-8 text") from None
    return checked("file", text) or ""


def checked(setting: str, text: str | None) -> str | None:
    """Return it. Raises ``ConfigError`` for bytes from the command line or stdin that are no text."""
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        raise ConfigError(setting, "is not UTF-8 text") from None
    return text
