"""Namespaces' manifests in a server: one hash, bounded, that leaves when nobody renews it."""

from __future__ import annotations

from collections.abc import Iterator

from backends.redis_connections import Connections
from backends.redis_layout import MANIFESTS, command

_MOST = 4096  # salts are namespaces too, and anybody may invent them
_LIFE_S = 30 * 86_400
_AT_ONCE = 256


class Manifests:
    """Keeps the manifests of all who share the server. Thread-safe; every call may block."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def put(self, namespace: bytes, manifest: str) -> None:
        """Keep one manifest; where there are too many, some others go."""
        name = namespace.hex().encode()
        commands = [
            command(b"HSET", MANIFESTS, name, manifest.encode()),
            command(b"EXPIRE", MANIFESTS, b"%d" % _LIFE_S),
            command(b"HLEN", MANIFESTS),
        ]
        with self._connections.lend("put_manifest") as wire:
            wire.send(commands)
            *_, count = wire.replies(len(commands))
            num_surplus = count - _MOST
            if num_surplus > 0:
                wire.send([command(b"HRANDFIELD", MANIFESTS, b"%d" % (num_surplus + 1))])
                (others,) = wire.replies(1)
                surplus = [other for other in others if other != name][:num_surplus]
                wire.send([command(b"HDEL", MANIFESTS, *surplus)])
                (_,) = wire.replies(1)

    def read(self) -> Iterator[str]:
        """Yield the manifests that are there, at most as many as are kept."""
        num_left, cursor = _MOST, b"0"
        while num_left > 0:
            with self._connections.lend("manifests") as wire:
                wire.send([command(b"HSCAN", MANIFESTS, cursor, b"COUNT", b"%d" % _AT_ONCE)])
                ((cursor, found),) = wire.replies(1)
            for manifest in found[1::2][:num_left]:
                yield manifest.decode(errors="replace")
                num_left -= 1
            if cursor == b"0":
                return
