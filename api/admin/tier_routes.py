"""Draining a tier: it takes no new blocks, and what it has moves elsewhere."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from api.admin.acting import ByOperators, IdempotencyKey
from api.admin.change_routes import BEGUN
from api.admin.fields import TierName
from api.admin.keeping_views import DrainingView
from api.admin.outcome_views import outcome_body
from api.admin.requests import DrainFields
from api.error_schema import errors

Named = Annotated[TierName, Path()]

router = APIRouter(prefix="/admin", tags=["tiers"])


@router.post("/tiers/{tier}/drain", status_code=202, responses=BEGUN)
async def drain(
    action: ByOperators, tier: Named, fields: DrainFields, idempotency_key: IdempotencyKey = None
) -> Response:
    """Let a tier take no new blocks from now on; with a target, what it has moves there."""
    action.on |= fields.model_dump(exclude_none=True)
    action.context.require_tier(tier)
    action.context.refuse_odd_tiers(target=fields.target)
    admin = action.context.admin
    return action.begin(
        "drain",
        lambda progress: outcome_body(admin.drain(tier, fields.target, progress=progress), None),
        fields,
        idempotency_key,
    )


@router.delete("/tiers/{tier}/drain", responses=errors(403, 404))
async def undrain(action: ByOperators, tier: Named) -> DrainingView:
    """Let a tier take blocks again."""
    action.context.require_tier(tier)
    admin = action.context.admin

    def undrain_now() -> list[str]:
        admin.undrain(tier)
        return sorted(admin.draining)

    return DrainingView(draining=await action.now(undrain_now))
