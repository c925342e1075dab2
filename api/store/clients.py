"""Clients that use the store over HTTP: known by a name of their own, forgotten when they are silent."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

from kvstore.errors import OverloadedError
from kvstore.regularly import Regularly
from kvstore.remote.session import Session
from kvstore.remote.tenancy import Owners, Tenant
from kvstore.store import TieredStore

_MOST_CLIENTS = 256
_MOST_OF_A_TENANT = 128
_SILENT_S = 120.0
_SWEEP_S = 1.0
_MOST_RESERVED_BYTES = 256 << 20


@dataclass(slots=True)
class _Client:
    session: Session
    heard_s: float


class StoreClients:
    """Sessions by tenant and client. Thread-safe.

    There is no connection whose end would tell that a client has died: its leases and reservations end at
    their deadlines, and the rest after two silent minutes.
    """

    def __init__(self, store: TieredStore, owners: Owners) -> None:
        self._store = store
        self._owners = owners
        self._clients: dict[tuple[str, int, str], _Client] = {}
        self._lock = Lock()
        self._sweeping = Regularly("store-clients", _SWEEP_S, self._sweep)

    def session(self, tenant: Tenant, client: str) -> Session:
        """Return a client's session. Raises ``OverloadedError`` when there are too many clients."""
        now_s = self._store.now_s()
        name = tenant.name, int(tenant.role), client
        with self._lock:
            known = self._clients.get(name)
            if known is None or not known.session.is_open:
                if known is None:
                    self._refuse_too_many(tenant)
                known = self._clients[name] = _Client(
                    Session(self._store, tenant, self._owners, _MOST_RESERVED_BYTES), now_s
                )
            known.heard_s = now_s
        return known.session

    def _refuse_too_many(self, tenant: Tenant) -> None:
        num_own = sum(name == tenant.name for name, _, _ in self._clients)
        if len(self._clients) >= _MOST_CLIENTS or (tenant.name and num_own >= _MOST_OF_A_TENANT):
            raise OverloadedError(len(self._clients), _SILENT_S)

    @property
    def is_sweeping(self) -> bool:
        """Whether what silent clients hold is given back: the thread that does so lives."""
        return self._sweeping.is_alive

    @property
    def num_clients(self) -> int:
        """How many there are."""
        return len(self._clients)

    def close(self) -> None:
        """Give back what all clients hold."""
        self._sweeping.stop()
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.session.close()

    def _sweep(self) -> None:
        now_s = self._store.now_s()
        with self._lock:
            silent = [name for name, client in self._clients.items() if now_s - client.heard_s > _SILENT_S]
            gone = [self._clients.pop(name) for name in silent]
            clients = list(self._clients.values())
        for client in gone:
            client.session.close()
        for client in clients:
            client.session.sweep(now_s)
