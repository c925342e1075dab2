"""Finds foreign packages that hide ours: the names of our rooms are names that others use too."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from kvstore.errors import ConfigError

ROOMS = ("kvstore", "policies", "backends", "engine_adapter", "api")


def hidden_rooms(home: Path | None = None) -> dict[str, str]:
    """Return each room that would be imported from elsewhere than ``home``, with that place."""
    home = home or Path(__file__).resolve().parent.parent
    found = {room: _place(room) for room in ROOMS}
    return {room: str(place) for room, place in found.items() if place is None or place.parent != home}


def refuse_hidden_rooms(home: Path | None = None) -> None:
    """Raise ``ConfigError`` when a foreign package hides one of ours."""
    for room, place in hidden_rooms(home).items():
        raise ConfigError(
            "PYTHONPATH",
            f"the package {room!r} comes from {place}, which hides prefixd's own; remove it from the path",
        )


def _place(room: str) -> Path | None:
    spec = find_spec(room)
    return Path(spec.origin).resolve().parent if spec and spec.origin else None
