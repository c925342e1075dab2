"""Namespaces' manifests in a server: one hash, bounded, that leaves when nobody renews it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import cast

from backends.redis_connections import Connections
from backends.redis_layout import MANIFESTS

_MOST = 4096  # salts are namespaces too, and anybody may invent them
_LIFE_S = 30 * 86_400
_AT_ONCE = 256


class Manifests:
    """Keeps the manifests of all who share the server. Thread-safe; every call may block."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def put(self, namespace: bytes, manifest: str) -> None:
        """Keep one manifest; where there are too many, some other goes."""
        with self._connections.control("put_manifest") as client:
            with client.pipeline(transaction=False) as pipeline:
                pipeline.hset(MANIFESTS, namespace.hex(), manifest)
                pipeline.expire(MANIFESTS, _LIFE_S)
                pipeline.hlen(MANIFESTS)
                *_, count = pipeline.execute()
            if count > _MOST:
                others = cast("list[bytes]", client.hrandfield(MANIFESTS, count - _MOST + 1))
                surplus = [name for name in others if name != namespace.hex().encode()]
                client.hdel(MANIFESTS, *surplus[: count - _MOST])

    def read(self) -> Iterator[str]:
        """Yield the manifests that are there."""
        with self._connections.control("manifests") as client:
            found = client.hscan_iter(MANIFESTS, count=_AT_ONCE)
            for _, manifest in islice(found, _MOST):
                yield manifest.decode(errors="replace")
