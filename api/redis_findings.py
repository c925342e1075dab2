"""What ``prefixd doctor`` finds of the Redis or Valkey server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

from api.findings import Finding, Level
from api.quantities import format_bytes
from api.serving_config import redis_address
from api.settings import Settings
from api.settings_sources import check_redis
from backends.builtin import redis_backend
from kvstore.errors import ConfigError, PluginError


def look_at_redis(settings: Settings) -> Iterator[Finding]:
    """Yield whether the tier's server is there and fit for it."""
    try:
        check_redis(settings)
        address = redis_address(settings)
    except ConfigError as error:
        yield Finding("redis", Level.BAD, str(error))
        return
    if address is None:
        yield Finding("redis", Level.GOOD, "no Redis or Valkey tier is asked for")
        return
    try:
        with closing(redis_backend(address=address)) as backend:
            facts = backend.stats().facts
    except PluginError as error:
        yield Finding("redis", Level.BAD, error.reason)
        return
    yield _redis_server(facts, settings.redis_bytes)


def _redis_server(facts: Mapping[str, str], budget_bytes: int) -> Finding:
    if problem := facts.get("problem"):
        return Finding("redis", Level.BAD, f"{facts['server']}: {problem}")
    maxmemory, policy = int(facts.get("maxmemory_bytes", 0)), facts.get("maxmemory_policy", "unknown")
    limit = f"maxmemory {format_bytes(maxmemory)}" if maxmemory else "no maxmemory"
    told = f"{facts['version']} at {facts['server']}, {limit}, {policy}"
    if facts.get("role") == "slave":
        return Finding("redis", Level.BAD, f"{told}; a replica takes no writes: name its primary")
    if not maxmemory:
        return Finding("redis", Level.DOUBTFUL, f"{told}; it may outgrow its machine: set maxmemory")
    if policy == "noeviction":
        return Finding("redis", Level.DOUBTFUL, f"{told}; full, it refuses: set maxmemory-policy allkeys-lru")
    if maxmemory < budget_bytes:
        return Finding("redis", Level.DOUBTFUL, f"{told}, less than the budget {format_bytes(budget_bytes)}")
    return Finding("redis", Level.GOOD, told)
