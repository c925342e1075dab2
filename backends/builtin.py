"""The backends that come with the project, registered like any other."""

from __future__ import annotations

from backends.disk import DiskBackend
from backends.host import HostBackend
from kvstore.registry import Factory, Kind, Registry

BUILT_IN: dict[str, Factory] = {
    "host": HostBackend,
    "disk": DiskBackend,
}
"""Factories by name: ``host(arena=Arena)``, ``disk(path=Path)``."""


def register_builtin(registry: Registry) -> None:
    """Offer the built-in backends in ``registry``."""
    for name, factory in BUILT_IN.items():
        registry.register(Kind.BACKEND, name, factory)
