"""Finds foreign packages that hide ours: the names of our rooms are names that others use too.

Imports nothing of ours, so that it can look before anything foreign is taken for it.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

ROOMS = ("kvstore", "policies", "backends", "engine_adapter", "api")


def hidden_rooms(home: Path | None = None) -> dict[str, str]:
    """Return each room that would be imported from elsewhere than ``home``, with that place."""
    home = home or Path(__file__).resolve().parent.parent
    found = {room: _place(room) for room in ROOMS}
    return {room: str(place) for room, place in found.items() if place != home / room}


def complaint(room: str, place: str) -> str:
    """Return what to tell of a hidden room."""
    return f"the package {room!r} comes from {place}, which hides prefixd's own: take it off PYTHONPATH"


def _place(room: str) -> Path | None:
    spec = find_spec(room)
    return Path(spec.origin).resolve().parent if spec and spec.origin else None
