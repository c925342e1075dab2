"""Whose a client is: what it may do, and which namespaces are its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from hashlib import blake2b
from threading import Lock

from kvstore.errors import AccessError
from kvstore.namespace import Namespace


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
    """A client's tenant: its ``name`` (empty: where nobody is told apart), role and secret.

    The secret is mixed into the salts of its namespaces, so that nobody else can name its blocks.
    """

    name: str = ""
    role: Role = Role.ADMIN
    secret: bytes = b""

    def require(self, role: Role) -> None:
        """Raise ``AccessError`` unless the token allows what takes ``role``."""
        if self.role < role:
            raise AccessError(f"this needs a token with the role {role.name.lower()}")

    def own(self, namespace: Namespace) -> Namespace:
        """Return the tenant's own namespace in place of one as a client describes it."""
        if not self.name:
            return namespace
        mixed = blake2b(namespace.salt.encode(), digest_size=16, key=self.secret, person=b"prefixd-tenant")
        return replace(namespace, salt=mixed.hexdigest())


class Owners:
    """Whose namespaces are: so that what clients may map holds blocks of their own tenant alone."""

    def __init__(self) -> None:
        self._tenants: dict[bytes, bytes] = {}
        self._lock = Lock()

    def note(self, tenant: Tenant, namespace: Namespace) -> None:
        """Note that a tenant has described a namespace as its own."""
        with self._lock:
            self._tenants[namespace.digest] = tenant.name.encode()

    def of(self, namespace: bytes) -> bytes:
        """Return the tenant of a namespace; only its clients can name its blocks."""
        return self._tenants.get(namespace, b"")


Authenticate = Callable[[str | None], Tenant]
"""Returns whose a token is; raises ``AccessError``."""


def open_to_all(_token: str | None) -> Tenant:
    """Let everybody in as one tenant: for a socket that the file system guards."""
    return Tenant()
