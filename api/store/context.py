"""What the store's routes share, and who may call them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Request

from api.error_schema import errors
from api.few_threads import FewThreads
from api.store.clients import StoreClients
from api.store.moving import Moving
from api.tenancy import Caller
from kvstore.remote.session import Session
from kvstore.remote.tenancy import Role
from kvstore.store import TieredStore

GONE = errors(404)


@dataclass(frozen=True)
class StoreContext:
    """``threads`` are for calls that are quick, ``waits`` for those that may wait for a medium."""

    store: TieredStore
    clients: StoreClients
    threads: FewThreads
    waits: FewThreads
    moving: Moving

    @property
    def broken(self) -> Mapping[str, str]:
        """Say of what has died why it must not."""
        if self.clients.is_sweeping:
            return {}
        return {"clients": "what silent ones held stays, its thread has died: restart the server"}

    def close(self) -> None:
        """Give back what all clients hold."""
        self.clients.close()
        self.threads.close()
        self.waits.close()


# None of these blocks; were they not async, each would take a turn on a thread that slow requests share.
async def context_of(request: Request) -> StoreContext:
    """Return what the service was built with."""
    context: StoreContext = request.app.state.store
    return context


async def client_of(
    context: Annotated[StoreContext, Depends(context_of)],
    tenant: Caller,
    client: Annotated[str, Header(alias="X-Prefixd-Client", min_length=1, max_length=64)],
) -> Session:
    """Return the session of the client that sent a request: it names itself, its token says whose it is."""
    return context.clients.session(tenant, client)


async def writer_of(session: Annotated[Session, Depends(client_of)]) -> Session:
    """Do so for those who may store. Raises ``AccessError``."""
    session.tenant.require(Role.DATA)
    return session


Shared = Annotated[StoreContext, Depends(context_of)]
Client = Annotated[Session, Depends(client_of)]
Writer = Annotated[Session, Depends(writer_of)]
