"""What the store's routes share, and who may call them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, Request

from api.few_threads import FewThreads
from api.store.clients import StoreClients
from api.tenancy import Caller
from kvstore.remote.session import Session
from kvstore.remote.tenancy import Role
from kvstore.store import TieredStore

GONE: dict[int | str, dict[str, Any]] = {
    404: {"description": "The block, lease or reservation is not there (any more)."}
}


@dataclass(frozen=True)
class StoreContext:
    """``threads`` are for calls that may take long."""

    store: TieredStore
    clients: StoreClients
    threads: FewThreads

    def close(self) -> None:
        """Give back what all clients hold."""
        self.clients.close()
        self.threads.close()


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
