"""``prefixd version`` and ``prefixd --version``."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import typer


def show_version() -> None:
    """Print the versions of prefixd and of what it computes with.

    For example:

        prefixd version
    """
    parts = [f"prefixd {installed_version('prefixd')}", f"python {platform.python_version()}"]
    parts += [f"{package} {installed_version(package)}" for package in ("torch", "transformers")]
    typer.echo(", ".join(parts))


def installed_version(package: str) -> str:
    """Return a package's version without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
