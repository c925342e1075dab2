"""What a server says of itself, for people."""

from __future__ import annotations

from backends.redis_connections import Connections
from backends.redis_errors import ProtocolError
from backends.redis_layout import command

_ASKED = {
    "role": "role",
    "used_memory_bytes": "used_memory",
    "maxmemory_bytes": "maxmemory",
    "maxmemory_policy": "maxmemory_policy",
    "num_evicted_keys": "evicted_keys",
    "num_clients": "connected_clients",
}


def server_facts(connections: Connections) -> dict[str, str]:
    """Ask the server for its version, role, memory and policy. May block; raises ``BackendError``."""
    with connections.lend("stats") as wire:
        wire.send([command(b"INFO")])
        (text,) = wire.replies(1)
        if not isinstance(text, bytes):
            raise ProtocolError("a reply of another kind than was asked for")
    info = dict(line.split(":", 1) for line in text.decode(errors="replace").splitlines() if ":" in line)
    kind = "valkey" if "valkey_version" in info else "redis"
    facts = {"version": f"{kind} {info.get(f'{kind}_version', 'of unknown version')}"}
    return facts | {name: info[field] for name, field in _ASKED.items() if field in info}
