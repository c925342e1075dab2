"""Whose a client is: what it may do, and which namespaces are its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from threading import Lock

from kvstore.errors import AccessError
from kvstore.keys import KEY_BYTES
from kvstore.namespace import Namespace, tenant_digest

_MOST_NAMESPACES = 1 << 19  # twice what all clients together may use


class Role(IntEnum):
    """What a token allows; each allows what those before it do."""

    READ = 1
    """Look blocks up and load them."""
    DATA = 2
    """Store blocks too, and remove one's own."""
    ADMIN = 3
    """See to the store as a whole."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose a client is, and what it may do. Without a ``name`` it is the operator's, and may name any block.

    A tenant's name is part of its namespaces and of its keys, so that nobody else can name its blocks.
    ``token_name`` is what its token is called in the operator's file, for the log.
    """

    name: str = ""
    role: Role = Role.ADMIN
    token_name: str = ""

    def require(self, role: Role) -> None:
        """Raise ``AccessError`` unless the token allows what takes ``role``."""
        if self.role < role:
            raise AccessError(f"this needs a token with the role {role.name.lower()}")

    def require_operator(self, role: Role = Role.ADMIN) -> None:
        """Do so, and raise ``AccessError`` for any tenant: it concerns what all share."""
        self.require(role)
        if self.name:
            raise AccessError("this concerns all tenants: it needs a token that is no tenant's")

    def own(self, namespace: Namespace) -> Namespace:
        """Return the tenant's own namespace in place of one as a client describes it."""
        return namespace.owned_by(self.name) if self.name else namespace

    def own_keys(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return what the tenant's blocks are kept under, in place of the keys that a client says.

        A key can be worked out by whoever knows the prompt and the namespace; whatever a client says, it is
        a key of its own tenant alone. No key (of no parent) stays none.
        """
        if not self.name:
            return list(keys)
        own = bytes.fromhex(tenant_digest(self.name))
        return [key and blake2b(key, digest_size=KEY_BYTES, key=own).digest() for key in keys]


class Owners:
    """Whose namespaces are: so that what clients may map holds blocks of their own tenant alone.

    Of more than ``most`` those are forgotten that nobody has described for the longest time.
    """

    def __init__(self, most: int = _MOST_NAMESPACES) -> None:
        self._most = most
        self._tenants: dict[bytes, bytes] = {}
        self._lock = Lock()

    def note(self, tenant: Tenant, namespace: Namespace) -> None:
        """Note that a tenant has described a namespace as its own."""
        with self._lock:
            self._tenants.pop(namespace.digest, None)
            self._tenants[namespace.digest] = tenant.name.encode()
            if len(self._tenants) > self._most:
                del self._tenants[next(iter(self._tenants))]

    def of(self, namespace: bytes) -> bytes:
        """Return the tenant of a namespace; only its clients can name its blocks."""
        return self._tenants.get(namespace, b"")


Authenticate = Callable[[str | None], Tenant]
"""Returns whose a token is; raises ``AccessError``."""


def open_to_all(_token: str | None) -> Tenant:
    """Let everybody in as one tenant: for a socket that the file system guards."""
    return Tenant()
