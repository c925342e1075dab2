"""The policies that come with the project, registered like anybody else's."""

from __future__ import annotations

from kvstore.registry import Factory, Kind, Registry
from policies.arc import LeafFirstARC
from policies.lfu import LeafFirstLFU
from policies.lru import LeafFirstLRU
from policies.reload import AlwaysCompute, AlwaysLoad, Measured, Static, Timeout
from policies.reuse import LeafFirstReuse
from policies.s3fifo import LeafFirstS3FIFO

BUILTIN: tuple[tuple[Kind, str, Factory], ...] = (
    (Kind.EVICTION, "lru", LeafFirstLRU),
    (Kind.EVICTION, "lfu", LeafFirstLFU),
    (Kind.EVICTION, "s3fifo", LeafFirstS3FIFO),
    (Kind.EVICTION, "arc", LeafFirstARC),
    (Kind.EVICTION, "reuse", LeafFirstReuse),
    (Kind.RELOAD, "measured", Measured),
    (Kind.RELOAD, "always-load", AlwaysLoad),
    (Kind.RELOAD, "always-compute", AlwaysCompute),
    (Kind.RELOAD, "static", Static),
    (Kind.RELOAD, "timeout", Timeout),
)


def register_builtin(registry: Registry) -> None:
    """Offer the built-in policies under their names."""
    for kind, name, factory in BUILTIN:
        registry.register(kind, name, factory)
