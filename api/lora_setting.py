"""The setting ``lora``: names of adapters and their folders, as flags, variables and files write them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

MOST_ADAPTERS = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


def _read(value: object) -> object:
    """Take ``NAME=DIR,NAME=DIR``, a list of ``NAME=DIR``, or a table; return folders by name."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    pairs = list(value.items()) if isinstance(value, dict) else list(_pairs(value))
    if len(pairs) > MOST_ADAPTERS:
        raise ValueError(f"names more than {MOST_ADAPTERS} adapters")
    folders: dict[str, Any] = {}
    for name, folder in pairs:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError("a name has 1 to 128 of A-Z a-z 0-9 . _ : / - and begins with a letter or digit")
        if name in folders:
            raise ValueError(f"names {name} twice")
        if folder == "":
            raise ValueError(f"must name a folder for {name}")
        folders[name] = folder
    return folders


def _pairs(value: object) -> Iterable[tuple[str, str]]:
    if not isinstance(value, list | tuple):
        raise ValueError("an adapter is written NAME=DIR")  # noqa: TRY004 - pydantic shows these alone
    for text in value:
        name, equals, folder = text.partition("=") if isinstance(text, str) else ("", "", "")
        if not equals:
            raise ValueError("an adapter is written NAME=DIR")
        yield name.strip(), folder.strip()


def _expanded(folders: dict[str, Path]) -> dict[str, Path]:
    return {name: folder.expanduser() for name, folder in folders.items()}


LoraFolders = Annotated[dict[str, Path], BeforeValidator(_read), AfterValidator(_expanded)]
