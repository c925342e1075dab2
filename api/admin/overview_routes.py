"""The whole in a few numbers, and its tiers one by one."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fastapi import APIRouter

from api.admin.context import AdminContext, Shared, scope_of
from api.admin.views import Overview, TierList, TierView
from api.tenancy import Caller
from kvstore.remote.tenancy import Tenant
from kvstore.statistics import State, TierHealth

router = APIRouter(prefix="/admin", tags=["overview"])


@router.get("/overview")
async def get_overview(context: Shared, caller: Caller) -> Overview:
    """Tell the whole in a few numbers: tiers, namespaces, clients, mode. A tenant is told what is its own."""
    return await context.threads.run(lambda: _overview(context, caller))


@router.get("/tiers")
async def list_tiers(context: Shared, caller: Caller) -> TierList:
    """List the tiers from the fastest, the engine's own pool first where there is one."""
    tiers = await context.threads.run(lambda: tier_views(context, caller))
    return TierList(data=tiers, next_cursor=None, total=len(tiers))


def tier_views(context: AdminContext, caller: Tenant) -> list[TierView]:
    """Return the tiers, with what the caller may know of them."""
    scope, health = scope_of(caller), context.store.health().tiers
    draining = context.admin.draining
    views = []
    for tier in context.store.statistics().tiers:
        state = health.get(tier.name, TierHealth(State.OK))
        views.append(
            TierView(
                name=tier.name,
                blocks=tier.num_blocks,
                bytes=tier.used_bytes,
                budget_bytes=tier.budget_bytes,
                pinned_bytes=tier.pinned_bytes,
                state=state.state.value,
                reason=state.reason,
                is_draining=tier.name in draining,
                policy=getattr(context.settings, f"{tier.name}_eviction", None),
            )
        )
    views = [view for view in views if view.name != "device" or context.model is not None]
    return views if scope is None else [_own(view, context, scope) for view in views]


def _own(view: TierView, context: AdminContext, tenant: str) -> TierView:
    """Return a tier with what one tenant has in it."""
    own = context.admin.namespaces(tenant)
    pinned = sum(
        pin.charged_bytes for pin in context.store.pins() if (pin.tenant, pin.tier) == (tenant, view.name)
    )
    return view.model_copy(
        update={
            "blocks": sum(space.num_blocks.get(view.name, 0) for space in own),
            "bytes": sum(space.nbytes.get(view.name, 0) for space in own),
            "pinned_bytes": pinned,
        }
    )


def _overview(context: AdminContext, caller: Tenant) -> Overview:
    scope = scope_of(caller)
    return Overview(
        tiers=tier_views(context, caller),
        namespaces=len(context.admin.namespaces(scope)),
        clients=context.num_clients() if scope is None else 0,
        mode=context.model.mode() if context.model else None,
        uptime_s=(context.clock.wall_ms() - context.started_ms) / 1000,
        version=_version(),
        has_model=context.model is not None,
    )


def _version() -> str:
    try:
        return version("prefixd")
    except PackageNotFoundError:
        return "unknown"
