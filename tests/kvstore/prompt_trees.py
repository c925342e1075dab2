"""Tenants whose prompts are trees, for machines of hypothesis over a store of two tiers."""

from __future__ import annotations

from hypothesis import strategies as st

from kvstore.namespace import Namespace
from kvstore.registry import Kind
from policies.builtin import BUILTIN
from tests.kvstore.conftest import NAMESPACE

NUM_NODES = 15
"""Of each tenant's prompts: a tree in which node n follows node n // 2."""
TIERS = {"host": 6, "disk": 12}

nodes = st.integers(1, NUM_NODES)
policies = [(name, factory) for kind, name, factory in BUILTIN if kind is Kind.EVICTION]


def namespace(tenant: int) -> Namespace:
    """Return the namespace of a tenant's blocks."""
    return NAMESPACE.with_salt(f"tenant {tenant}")


def key(tenant: int, node: int) -> bytes:
    """Return the key of a node in a tenant's tree."""
    return bytes([0x80, tenant]) + node.to_bytes(14, "big")


def prefix(tenant: int, node: int) -> list[bytes]:
    """Return the keys from the root to a node."""
    path = []
    while node:
        path.append(key(tenant, node))
        node //= 2
    return path[::-1]
