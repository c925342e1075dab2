"""The administration's routes as a part of a service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fastapi import FastAPI

from api.admin import (
    audit_routes,
    block_routes,
    change_routes,
    config_routes,
    history_routes,
    insight_routes,
    job_routes,
    namespace_routes,
    overview_routes,
    pin_routes,
    tier_routes,
    transfer_routes,
)
from api.admin.audit_log import AuditLog
from api.admin.context import AdminContext
from api.admin.jobs import Jobs
from api.admin.rules import Rules
from api.error_schema import errors
from api.few_threads import FewThreads
from api.history import History
from api.history_readings import store_reading
from api.sampler import Sampler
from api.settings import Settings
from kvstore.clock import Clock
from kvstore.store import TieredStore

if TYPE_CHECKING:  # a store alone needs no torch
    from api.admin.served_model import ServedModel

_PARTS = (
    overview_routes, block_routes, namespace_routes, pin_routes, change_routes, tier_routes, transfer_routes,
    insight_routes, job_routes, config_routes, audit_routes, history_routes,
)  # fmt: skip


def add_admin_routes(
    app: FastAPI,
    store: TieredStore,
    settings: Settings,
    degraded: Mapping[str, str],
    num_clients: Callable[[], int],
    model: ServedModel | None = None,
    clock: Clock | None = None,
) -> AdminContext:
    """Let ``app`` see to ``store``; what is returned starts and closes with it. Raises ``ConfigError``."""
    clock, history = clock or Clock(), History()
    read = model.reading if model else lambda: store_reading(store.statistics())
    context = AdminContext(
        store=store,
        settings=settings,
        degraded=degraded,
        threads=FewThreads("admin", num_threads=4, max_waiting=64),
        jobs=Jobs(clock),
        log=AuditLog(clock, settings.audit_log),
        clock=clock,
        rules=Rules(store),
        history=history,
        sampler=Sampler(history, read, clock),
        started_ms=clock.wall_ms(),
        num_clients=num_clients,
        model=model,
    )
    app.state.admin = context
    for part in _PARTS:
        app.include_router(part.router, responses=errors(429))
    return context
