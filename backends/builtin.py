"""The backends that come with the project, registered like any other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from backends.disk import DiskBackend
from backends.host import HostBackend
from kvstore.errors import PluginError
from kvstore.registry import Factory, Kind, Registry
from kvstore.seams import Backend, Codec


def redis_backend(**options: Any) -> Backend:
    """Return a ``RedisBackend``. Raises ``PluginError`` when what it needs is not installed."""
    with _needing_extra(Kind.BACKEND, "redis"):
        from backends.redis_backend import RedisBackend  # noqa: PLC0415 - an extra, for those who use it
    return RedisBackend(**options)


def byte_planes(**options: Any) -> Codec:
    """Return a ``BytePlanes``. Raises ``PluginError`` when what it needs is not installed."""
    with _needing_extra(Kind.CODEC, "zstd-planes"):
        from backends.byte_planes import BytePlanes  # noqa: PLC0415 - an extra, for those who use it
    return BytePlanes(**options)


BUILT_IN: dict[str, Factory] = {
    "host": HostBackend,
    "disk": DiskBackend,
    "redis": redis_backend,
}
"""Factories by name: ``host(arena=Arena)``, ``disk(path=Path)``,
``redis(address=RedisAddress, clock=Clock | None)``."""


def register_builtin(registry: Registry) -> None:
    """Offer the built-in backends and codecs in ``registry``."""
    for name, factory in BUILT_IN.items():
        registry.register(Kind.BACKEND, name, factory)
    registry.register(Kind.CODEC, "zstd-planes", byte_planes)
    registry.register(Kind.CODEC, "none", lambda item_bytes: None)  # noqa: ARG005 - all codecs are told


@contextmanager
def _needing_extra(kind: Kind, name: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        reason = f"{error.name} is not installed: pip install 'prefixd[redis]'"
        raise PluginError(kind.value, name, reason) from error
