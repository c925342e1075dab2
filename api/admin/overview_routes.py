"""The whole in a few numbers, and its tiers one by one."""

from __future__ import annotations

from collections import Counter

from fastapi import APIRouter

from api.admin.context import MOST_PINS, AdminContext, Shared, scope_of
from api.admin.views import Overview, TierList, TierView
from api.commands.version import installed_version
from api.tenancy import Caller
from kvstore.remote.tenancy import Tenant
from kvstore.statistics import State, TierHealth, TierStatistics
from kvstore.tier import DEVICE

router = APIRouter(prefix="/admin", tags=["overview"])


@router.get("/overview")
async def get_overview(context: Shared, caller: Caller) -> Overview:
    """Tell the whole in a few numbers: tiers, namespaces, clients, mode. A tenant is told what is its own."""
    return await context.threads.run(lambda: _overview(context, caller))


@router.get("/tiers")
async def list_tiers(context: Shared, caller: Caller) -> TierList:
    """List the tiers from the fastest, the engine's own pool first where there is one."""
    tiers = await context.threads.run(lambda: tier_views(context, scope_of(caller)))
    return TierList(data=tiers, next_cursor=None, total=len(tiers))


def tier_views(context: AdminContext, scope: str | None) -> list[TierView]:
    """Return the tiers, with what a tenant has in them; ``None``: with what all have."""
    health, draining = context.store.health().tiers, context.admin.draining
    views = [
        _view(context, tier, health.get(tier.name, TierHealth(State.OK)), tier.name in draining)
        for tier in context.store.statistics().tiers
        if tier.name != DEVICE or context.model is not None
    ]
    return views if scope is None else _own(views, context, scope)


def _view(context: AdminContext, tier: TierStatistics, health: TierHealth, is_draining: bool) -> TierView:
    return TierView(
        name=tier.name,
        blocks=tier.num_blocks,
        bytes=tier.used_bytes,
        budget_bytes=tier.budget_bytes,
        pinned_bytes=tier.pinned_bytes,
        state=health.state.value,
        reason=health.reason,
        is_draining=is_draining,
        policy=getattr(context.settings, f"{tier.name}_eviction", None),
    )


def _own(views: list[TierView], context: AdminContext, tenant: str) -> list[TierView]:
    """Return the same with what one tenant has in each."""
    blocks, nbytes, pinned_bytes = Counter[str](), Counter[str](), Counter[str]()
    for space in context.admin.namespaces(tenant):
        blocks.update(space.num_blocks)
        nbytes.update(space.nbytes)
    for pin in context.store.pins(MOST_PINS):
        pinned_bytes[pin.tier] += pin.charged_bytes if pin.tenant == tenant else 0
    return [
        view.model_copy(
            update={
                "blocks": blocks[view.name],
                "bytes": nbytes[view.name],
                "pinned_bytes": pinned_bytes[view.name],
            }
        )
        for view in views
    ]


def _overview(context: AdminContext, caller: Tenant) -> Overview:
    scope = scope_of(caller)
    return Overview(
        tiers=tier_views(context, scope),
        namespaces=len(context.admin.namespaces(scope)),
        clients=context.num_clients() if scope is None else 0,
        mode=context.model.mode() if context.model else None,
        uptime_s=(context.clock.wall_ms() - context.started_ms) / 1000,
        version=installed_version("prefixd"),
        has_model=context.model is not None,
    )
