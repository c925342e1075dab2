"""What a server says of itself, for people."""

from __future__ import annotations

from backends.redis_connections import Connections


def server_facts(connections: Connections) -> dict[str, str]:
    """Ask the server for its version, role, memory and policy. May block; raises ``BackendError``."""
    with connections.control("stats") as client:
        info = client.info()
    kind = "valkey" if "valkey_version" in info else "redis"
    asked = {
        "version": f"{kind} {info.get(f'{kind}_version', '?')}",
        "role": info.get("role"),
        "used_memory_bytes": info.get("used_memory"),
        "maxmemory_bytes": info.get("maxmemory"),
        "maxmemory_policy": info.get("maxmemory_policy"),
        "num_evicted_keys": info.get("evicted_keys"),
        "num_clients": info.get("connected_clients"),
    }
    return {name: str(value) for name, value in asked.items() if value is not None}
