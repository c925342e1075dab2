"""The store's routes as a part of a service."""

from __future__ import annotations

from fastapi import FastAPI

from api.few_threads import FewThreads
from api.store import data_routes, question_routes
from api.store.clients import StoreClients
from api.store.context import StoreContext
from api.store.moving import Moving
from kvstore.remote.tenancy import Owners
from kvstore.store import TieredStore


def add_store_routes(app: FastAPI, store: TieredStore, owners: Owners | None = None) -> StoreContext:
    """Let ``app`` answer for ``store``; what is returned is to be closed with it."""
    context = StoreContext(
        store,
        StoreClients(store, owners or Owners()),
        FewThreads("store", 8, 256),
        FewThreads("store-waits", 8, 64),
        Moving(),
    )
    app.state.store = context
    app.include_router(question_routes.router)
    app.include_router(data_routes.router)
    return context
