"""A prompt's blocks in a store of any kind, for its conformance suite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvstore.interface import BlockStore
from kvstore.keys import chain_keys
from kvstore.loading import LoadedBlock
from kvstore.namespace import Namespace
from kvstore.retention import Retention, TenantRule
from kvstore.store_config import StoreConfig

NAMESPACE = Namespace("weights", "{}", "float32", "float32", block_tokens=16)
BLOCK_BYTES = 8192
NUM_PINNABLE = 2


def conformance_config() -> StoreConfig:
    """Return what the store is set up with: no default TTL, and a pin budget of two blocks in two tiers."""
    budget = Retention(others=TenantRule(pin_bytes=NUM_PINNABLE * 2 * 2 * BLOCK_BYTES))
    return StoreConfig(default_ttl_s=None, audit_share=1.0, retention=budget)


@dataclass
class StorePlace:
    """Where stores of the kind are opened.

    ``open`` returns one over the same blocks each time: a new client, or the one store that there is. It has
    two tiers, the first in memory with room for at least 8 blocks, the second on a medium. ``pass_s`` lets
    time pass for all, without waiting.
    """

    open: Callable[[], BlockStore]
    pass_s: Callable[[float], None]


def payload(number: int) -> memoryview:
    """Return the bytes of a block."""
    return memoryview(bytes([number]) * BLOCK_BYTES)


@dataclass
class Prompt:
    """A prompt of whole blocks, each full of its number, as one store names them."""

    store: BlockStore
    num_blocks: int
    first: int = 0
    keys: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        digest = self.store.own_namespace(NAMESPACE).digest
        self.keys = chain_keys(digest, range(self.first, self.first + 16 * self.num_blocks), 16)

    def put(self, ttl_s: float | None = None) -> int:
        """Store its blocks; returns how many were taken."""
        parents = [b"", *self.keys]
        return sum(
            self.store.put(NAMESPACE, key, parents[number], payload(number), ttl_s=ttl_s)
            for number, key in enumerate(self.keys)
        )

    def has(self, number: int) -> bool:
        """Say whether a block is read back; it must be the right one."""
        out = bytearray(BLOCK_BYTES)
        if not self.store.get_into(self.keys[number], memoryview(out), timeout_s=5.0):
            return False
        assert out == payload(number)
        return True

    def tiers(self) -> list[str | None]:
        """Return each block's fastest tier."""
        hit = self.store.lookup(self.keys)
        hit.release()
        return list(hit.tiers)

    def load(self, number: int) -> LoadedBlock | None:
        """Load a block under a lease."""
        hit = self.store.lookup(self.keys)
        ticket = self.store.load(hit, number, self.store.now_s() + 5.0)
        assert ticket.wait(5.0)
        hit.release()
        return ticket.take()
