"""Whose a request is, by its token, and what that allows.

All of it is ``async``, though nothing waits: the framework would use another thread, which takes longer.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from kvstore.remote.tenancy import Role, Tenant


async def caller_of(request: Request) -> Tenant:
    """Return whose a request is that has passed the gate."""
    tenant: Tenant = request.state.tenant
    return tenant


async def writer_of(request: Request) -> Tenant:
    """Return who may store. Raises ``AccessError`` for a lower role."""
    tenant = await caller_of(request)
    tenant.require(Role.DATA)
    return tenant


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
Writer = Annotated[Tenant, Depends(writer_of)]
Operator = Annotated[Tenant, Depends(operator_of)]
Overseer = Annotated[Tenant, Depends(overseer_of)]
