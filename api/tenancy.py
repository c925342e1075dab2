"""Whose a request is, by its token, and what that allows.

All of it is ``async``, though nothing waits: the framework would use another thread, which takes longer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request

from kvstore.remote.tenancy import Role, Tenant


async def caller_of(request: Request) -> Tenant:
    """Return whose a request is that has passed the gate."""
    tenant: Tenant = request.state.tenant
    return tenant


def _with(role: Role) -> Callable[[Request], Awaitable[Tenant]]:
    async def allowed(request: Request) -> Tenant:
        tenant = await caller_of(request)
        tenant.require(role)
        return tenant

    return allowed


async def operator_of(request: Request) -> Tenant:
    """Return who may see to what all tenants share. Raises ``AccessError`` for a tenant or a lower role."""
    tenant = await caller_of(request)
    tenant.require_operator()
    return tenant


async def overseer_of(request: Request) -> Tenant:
    """Return who may see what all tenants share. Raises ``AccessError`` for a tenant."""
    tenant = await caller_of(request)
    tenant.require_operator(Role.READ)
    return tenant


Caller = Annotated[Tenant, Depends(caller_of)]
Writer = Annotated[Tenant, Depends(_with(Role.DATA))]
Admin = Annotated[Tenant, Depends(_with(Role.ADMIN))]
Operator = Annotated[Tenant, Depends(operator_of)]
Overseer = Annotated[Tenant, Depends(overseer_of)]
