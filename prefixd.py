"""The console script: runs the command line, or says what keeps it from running.

It stands outside the rooms because their names are generic: a foreign package called ``api`` on
the path would hide a script that lives in ours. Nothing of ours is imported before that is clear.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

ROOMS = ("kvstore", "policies", "backends", "engine_adapter", "api")
_EXTRAS = {
    "service": ("click", "fastapi", "httpx", "prometheus_client", "pydantic", "rich", "typer", "uvicorn"),
    "engine": ("accelerate", "gguf", "safetensors", "tokenizers", "torch", "transformers"),
    "plot": ("matplotlib",),
    "redis": ("hiredis", "redis", "zstandard"),
}


def main() -> None:
    """Run ``prefixd``; a foreign package in our place, or an extra not installed, ends it with one line."""
    for room, place in hidden_rooms().items():
        sys.exit(f"prefixd: {complaint(room, place)}")
    try:
        from api.cli import main as run_command_line  # noqa: PLC0415 - the base install has no typer

        run_command_line()
    except ModuleNotFoundError as error:
        if extra := _extra_of(error.name or ""):
            sys.exit(f"prefixd: {error.name} is not installed: pip install 'prefixd[{extra}]'")
        raise


def hidden_rooms(home: Path | None = None) -> dict[str, str]:
    """Return each room that would be imported from elsewhere than ``home``, with that place."""
    home = home or Path(__file__).resolve().parent
    found = {room: _place(room) for room in ROOMS}
    return {room: str(place) for room, place in found.items() if place != home / room}


def complaint(room: str, place: str) -> str:
    """Return what to tell of a hidden room."""
    return f"the package {room!r} comes from {place}, which hides prefixd's own: take it off PYTHONPATH"


def _place(room: str) -> Path | None:
    spec = find_spec(room)
    return Path(spec.origin).resolve().parent if spec and spec.origin else None


def _extra_of(module: str) -> str | None:
    package = module.partition(".")[0]
    return next((extra for extra, packages in _EXTRAS.items() if package in packages), None)


if __name__ == "__main__":
    main()
