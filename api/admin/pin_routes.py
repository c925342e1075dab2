"""Pins and quotas: whose blocks stay, and how much anybody may have."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from api.admin.acting import Action, ByAdmins, ByOperators
from api.admin.choosing import Chosen, chosen_by
from api.admin.context import MOST_PINS, AdminContext, Shared, scope_of
from api.admin.fields import UNSALTED, Cursor, Limit, page, tenant_name
from api.admin.keeping_views import (
    PinList,
    PinnedView,
    PinView,
    QuotaList,
    QuotaView,
    UnpinnedView,
    UsageView,
)
from api.admin.requests import PinFields, QuotaFields, SelectionFields, UnpinFields
from api.admin.rules import OTHERS
from api.error_schema import errors
from api.tenancy import Caller
from kvstore.errors import AbsentError, RequestError
from kvstore.statistics import StoreStatistics
from kvstore.upkeep import Pinned

_MOST_BLOCKS = 100_000

router = APIRouter(prefix="/admin", tags=["pins"])

TenantName = Annotated[
    str, Path(pattern=r"^([0-9a-f]{32}|unsalted|others)$", description="A digest, `unsalted` or `others`.")
]


@router.get("/pins")
async def list_pins(
    context: Shared,
    caller: Caller,
    limit: Annotated[Limit, Query()] = 100,
    cursor: Annotated[Cursor | None, Query()] = None,
) -> PinList:
    """List what is pinned, by tenant, tier and end; `GET /admin/blocks?pinned=true` lists the blocks."""
    tenant = scope_of(caller)
    pins = await context.threads.run(lambda: context.store.pins(MOST_PINS))
    own = [pin for pin in pins if tenant in {None, pin.tenant}]
    shown, next_cursor = page(own, cursor, limit)
    views = [
        PinView(
            tenant=tenant_name(pin.tenant), tier=pin.tier, until=pin.until_ms / 1000, blocks=pin.num_blocks,
            bytes=pin.charged_bytes,
        )
        for pin in shown
    ]  # fmt: skip
    return PinList(data=views, next_cursor=next_cursor, total=len(own))


@router.post("/pins", responses=errors(403, 404, 409))
async def pin(action: ByAdmins, fields: PinFields) -> PinnedView:
    """Keep blocks, and those they follow, for a time; all of it or nothing. What is nowhere is told."""
    chosen = await _noted(action, fields)
    pinned, absent = await action.now(lambda: _pin(action, fields, chosen))
    return PinnedView(
        tenant=tenant_name(pinned.tenant), until=pinned.until_ms / 1000, blocks=pinned.num_blocks,
        charged_bytes=pinned.charged_bytes, absent=[key.hex() for key in absent],
    )  # fmt: skip


@router.post("/unpin", responses=errors(403, 404))
async def unpin(action: ByAdmins, fields: UnpinFields) -> UnpinnedView:
    """Let blocks be ordinary again, and those they follow, but for what other pinned ones share."""
    chosen = await _noted(action, fields)

    def call() -> int:
        return action.context.store.unpin(_there(action.context, chosen), fields.tiers)

    return UnpinnedView(blocks=await action.now(call))


@router.get("/quotas")
async def list_quotas(context: Shared, caller: Caller) -> QuotaList:
    """List who may have how much of each tier, and how much of it is used."""
    tenant = scope_of(caller)
    views = await context.threads.run(lambda: _quotas(context))
    own = [view for view in views if tenant in {None, view.tenant}]
    return QuotaList(data=own, next_cursor=None, total=len(own))


@router.put("/quotas/{tenant}", responses=errors(403))
async def set_quotas(action: ByOperators, tenant: TenantName, fields: QuotaFields) -> QuotaView:
    """Bound what a tenant may have of each tier, and may pin, until the next start: then the file counts."""
    action.on |= fields.model_dump(mode="json", exclude_none=True)
    name = "" if tenant == UNSALTED else tenant
    rules = action.context.rules
    await action.now(lambda: rules.set_quotas(name, fields.tiers, fields.pin_bytes))
    views = await action.now(lambda: _quotas(action.context))
    return next(view for view in views if view.tenant == tenant)


async def _noted(action: Action, fields: SelectionFields) -> Chosen:
    chosen = await chosen_by(action.context, action.caller, fields.selection)
    action.on |= chosen.told | fields.model_dump(mode="json", exclude={"selection"}, exclude_none=True)
    return chosen


def _pin(action: Action, fields: PinFields, chosen: Chosen) -> tuple[Pinned, list[bytes]]:
    """Pin what is there of the blocks that are meant; returns that, and those that are not there."""
    context = action.context
    if context.model is not None:
        context.model.write_computed()
    there = _there(context, chosen)
    if not there:
        raise AbsentError("block", "of those")
    pinned = context.store.pin(there, for_s=fields.for_s, until_s=fields.until_s, tiers=fields.tiers)
    gone = set(chosen.keys or ()).difference(there) | set(pinned.absent)
    return pinned, sorted(gone)


def _there(context: AdminContext, chosen: Chosen) -> list[bytes]:
    """Return those of the blocks meant that are there, in their order. Raises ``RequestError``."""
    found = context.admin.blocks(chosen.blocks, None, _MOST_BLOCKS)
    if found.next is not None:
        raise RequestError("selection", f"means more than {_MOST_BLOCKS} blocks; name fewer at a time")
    there = {block.key: None for block in found.blocks}
    return list(there) if chosen.keys is None else [key for key in chosen.keys if key in there]


def _quotas(context: AdminContext) -> list[QuotaView]:
    """Return the quotas of those that the rules name, of everybody else's, and of who uses or has pinned."""
    rules, statistics = context.rules.now, context.store.statistics()
    used = _used(statistics)
    pins = {pins.tenant: pins.pinned_bytes for pins in statistics.pins}
    tenants = {*rules.tenants, *(tenant for tenant, _ in used), *pins}
    named = [(tenant_name(tenant), tenant, rules.tenant(tenant)) for tenant in sorted(tenants)]
    return [
        QuotaView(
            tenant=shown,
            tiers={
                tier: used.get((tenant, tier)) or UsageView(quota_bytes=quota_bytes, used_bytes=0, blocks=0)
                for tier, quota_bytes in rule.quotas.items()
            },
            pin_bytes=rule.pin_bytes,
            pinned_bytes=pins.get(tenant, 0),
        )
        for shown, tenant, rule in [(OTHERS, OTHERS, rules.others), *named]
    ]


def _used(statistics: StoreStatistics) -> dict[tuple[str, str], UsageView]:
    """Return what tenants use of their quotas, by tenant and tier."""
    return {
        (group.name, tier.name): UsageView(
            quota_bytes=group.quota_bytes, used_bytes=group.used_bytes, blocks=group.num_blocks
        )
        for tier in statistics.tiers
        for group in tier.groups
        if group.scope == "tenant"
    }
