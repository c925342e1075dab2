"""The console script: runs the command line, or says what keeps it from running."""

from __future__ import annotations

import sys

from api.shadowing import complaint, hidden_rooms

_EXTRAS = {
    "service": ("click", "fastapi", "httpx", "prometheus_client", "pydantic", "rich", "typer", "uvicorn"),
    "engine": ("accelerate", "gguf", "safetensors", "tokenizers", "torch", "transformers"),
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


def _extra_of(module: str) -> str | None:
    package = module.partition(".")[0]
    return next((extra for extra, packages in _EXTRAS.items() if package in packages), None)


if __name__ == "__main__":
    main()
