"""Tenants of a store in another process, and what its clients store and load in tests."""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.errors import AccessError
from kvstore.keys import chain_keys
from kvstore.namespace import Namespace
from kvstore.remote.client import RemoteStore
from kvstore.remote.tenancy import Role, Tenant
from kvstore.store import TieredStore

NAMESPACE = Namespace("weights", "{}", "float32", "float32", block_tokens=16)
TENANTS = {
    "token-a": Tenant("a", Role.DATA),
    "token-b": Tenant("b", Role.DATA),
    "token-reader": Tenant("a", Role.READ),
    "token-admin-a": Tenant("a", Role.ADMIN),
    "token-admin": Tenant(),
}


def by_token(token: str | None) -> Tenant:
    """Return whose token it is."""
    if token not in TENANTS:
        raise AccessError("the token is not known")
    return TENANTS[token]


def is_at_rest(store: TieredStore) -> bool:
    """Say whether nobody holds any block of a store."""
    return store.num_holds == 0


def keys_of(client: RemoteStore, num: int, first: int = 0) -> list[bytes]:
    """Return the keys of a prompt of ``num`` blocks, as this client has to name them."""
    digest = client.own_namespace(NAMESPACE).digest
    return chain_keys(digest, range(first, first + 16 * num), 16)


@dataclass(frozen=True)
class Blocks:
    """Blocks of ``nbytes``, each full of its number."""

    nbytes: int

    def payload(self, number: int) -> memoryview:
        """Return the bytes of a block."""
        return memoryview(bytes([number]) * self.nbytes)

    def put(self, client: RemoteStore, keys: list[bytes], first: int = 0) -> int:
        """Store a chain of blocks; returns how many were taken."""
        parents = [b"", *keys]
        return sum(
            client.put(NAMESPACE, key, parents[number], self.payload(first + number))
            for number, key in enumerate(keys)
        )

    def got(self, client: RemoteStore, key: bytes) -> bytes | None:
        """Return a block's bytes."""
        out = bytearray(self.nbytes)
        return bytes(out) if client.get_into(key, memoryview(out)) else None
