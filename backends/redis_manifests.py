"""Namespaces' manifests in a server: one hash, bounded, that leaves when nobody renews it."""

from __future__ import annotations

from collections.abc import Iterator

from backends.redis_connections import Connections
from backends.redis_errors import ProtocolError
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
            _require(isinstance(count, int))
            num_surplus = count - _MOST
            if num_surplus > 0:
                wire.send([command(b"HRANDFIELD", MANIFESTS, b"%d" % (num_surplus + 1))])
                (others,) = wire.replies(1)
                _require(_are_texts(others))
                surplus = [other for other in others if other != name][:num_surplus]
                wire.send([command(b"HDEL", MANIFESTS, *surplus)])
                (_,) = wire.replies(1)

    def read(self) -> Iterator[str]:
        """Yield the manifests that are there, at most as many as are kept."""
        num_left, cursor = _MOST, b"0"
        for _ in range(_MOST):
            with self._connections.lend("manifests") as wire:
                wire.send([command(b"HSCAN", MANIFESTS, cursor, b"COUNT", b"%d" % _AT_ONCE)])
                (reply,) = wire.replies(1)
                _require(isinstance(reply, list) and len(reply) == 2)
                cursor, found = reply
                _require(isinstance(cursor, bytes) and _are_texts(found))
            for manifest in found[1::2][:num_left]:
                yield manifest.decode(errors="replace")
                num_left -= 1
            if cursor == b"0" or num_left <= 0:
                return


def _are_texts(reply: object) -> bool:
    return isinstance(reply, list) and all(isinstance(text, bytes) for text in reply)


def _require(is_as_asked: bool) -> None:
    if not is_as_asked:
        raise ProtocolError("a reply of another kind than was asked for")
