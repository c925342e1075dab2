"""What the administration's routes share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request
from pydantic import BaseModel
from starlette.responses import Response

from api.admin.audit_log import AuditLog
from api.admin.jobs import Jobs
from api.admin.rules import Rules
from api.few_threads import FewThreads
from api.history import History
from api.sampler import Sampler
from api.settings import Settings
from kvstore.admin.administration import Administration
from kvstore.clock import Clock
from kvstore.errors import AbsentError, NeedsModelError, RequestError
from kvstore.namespace import tenant_digest
from kvstore.remote.tenancy import Tenant
from kvstore.store import TieredStore

if TYPE_CHECKING:  # a store alone needs no torch
    from api.admin.served_model import ServedModel

_LAST_STEPS_S = 2.0
MOST_PINS = 1_000_000
"""Groups of pins that are looked at: all there may be."""


@dataclass(frozen=True)
class AdminContext:
    """What a service was built with; ``model`` is ``None`` for a store alone.

    ``degraded`` says of each tier that it runs without why; ``threads`` are for calls of the store, ``jobs``
    for long ones; ``sampler`` fills the ``history``.
    """

    store: TieredStore
    settings: Settings
    degraded: Mapping[str, str]
    threads: FewThreads
    jobs: Jobs
    log: AuditLog
    clock: Clock
    rules: Rules
    history: History
    sampler: Sampler
    started_ms: int
    num_clients: Callable[[], int]
    model: ServedModel | None = None

    @property
    def admin(self) -> Administration:
        """The store's administration."""
        return self.store.admin

    def need_model(self, what: str) -> ServedModel:
        """Return the model's part. Raises ``NeedsModelError``."""
        if self.model is None:
            raise NeedsModelError(what)
        return self.model

    def require_tier(self, tier: str) -> None:
        """Raise ``AbsentError`` for a tier that is not there, or keeps no bytes of its own."""
        if tier not in self.store.tier_names[1:]:
            raise AbsentError("tier", tier)

    def refuse_odd_tiers(self, **named: str | None) -> None:
        """Raise ``RequestError`` for a field that names no such tier."""
        there = self.store.tier_names[1:]
        for field, tier in named.items():
            if tier is not None and tier not in there:
                raise RequestError(field, f"{tier!r} is not one of {', '.join(there)}")

    def start(self) -> None:
        """Begin to keep a history."""
        self.sampler.start()

    async def told(self, build: Callable[[], BaseModel]) -> Response:
        """Return an answer that is built, and written as JSON, off the event loop: it may be large."""
        body = await self.threads.run(lambda: build().model_dump_json())
        return Response(body, media_type="application/json")

    async def close(self) -> None:
        """Cancel all jobs, and write what is left of the log, their ends as well."""
        self.jobs.close()
        await asyncio.to_thread(self.jobs.wait, _LAST_STEPS_S)
        await asyncio.to_thread(self.sampler.close)
        self.threads.close()
        await asyncio.to_thread(self.log.close)


async def context_of(request: Request) -> AdminContext:
    """Return what the service was built with."""
    context: AdminContext = request.app.state.admin
    return context


def scope_of(caller: Tenant) -> str | None:
    """Return the digest of the tenant whose blocks alone a caller may see; ``None``: an operator, all."""
    return tenant_digest(caller.name) if caller.name else None


Shared = Annotated[AdminContext, Depends(context_of)]
