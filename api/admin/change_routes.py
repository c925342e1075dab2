"""Changes to blocks: when they end, which go, where they are. What may take long is a job."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from api.admin.acting import Acting, Action, ByAdmins, ByOperators, IdempotencyKey
from api.admin.choosing import Chosen, chosen_by
from api.admin.context import scope_of
from api.admin.job_views import JobView
from api.admin.outcome_views import OutcomeView, RetimedView, outcome_body, verification_body
from api.admin.requests import (
    ClearTierFields,
    DryFields,
    EvictFields,
    MoveFields,
    SelectionFields,
    TtlFields,
    WarmFields,
)
from api.error_schema import Responses, errors
from kvstore.admin.progress import Progress
from kvstore.errors import RequestError
from kvstore.remote.tenancy import Role
from kvstore.tier import DEVICE

BEGUN: Responses = {
    202: {"model": JobView, "description": "The job that was begun, or that the same request began."},
    **errors(403, 404, 409),
}
DRY_OR_BEGUN: Responses = {
    200: {"model": OutcomeView, "description": "Of a dry run: what would be done."},
    **BEGUN,
}

router = APIRouter(prefix="/admin", tags=["changes"])


@router.post("/ttl", responses=errors(403, 404))
async def set_ttl(action: ByAdmins, fields: TtlFields) -> RetimedView:
    """Set how long blocks live from now if nobody uses them, and how long after their first write at most."""
    chosen = await _chosen(action, fields)
    admin = action.context.admin
    done = await action.now(lambda: admin.set_ttl(chosen.blocks, fields.ttl_s, fields.hard_ttl_s))
    return RetimedView(blocks=done.num_blocks, absent=[key.hex() for key in done.absent])


@router.post("/evict", status_code=202, responses=DRY_OR_BEGUN)
async def evict(action: Acting, fields: EvictFields, idempotency_key: IdempotencyKey = None) -> Response:
    """Remove blocks from tiers, or from all; those in use or pinned stay."""
    for tier in fields.tiers or ():
        action.context.refuse_odd_tiers(tiers=tier)
    chosen = await _chosen(action, fields)
    admin = action.context.admin

    def work(progress: Progress, dry_run: bool = False) -> dict[str, Any]:
        gone = admin.evict(chosen.blocks, fields.tiers, dry_run=dry_run, progress=progress)
        return outcome_body(gone, scope_of(action.caller))

    return await action.dry_or_begin("evict", work, fields, idempotency_key)


@router.post("/move", status_code=202, responses=DRY_OR_BEGUN)
async def move(action: Acting, fields: MoveFields, idempotency_key: IdempotencyKey = None) -> Response:
    """Bring blocks from one tier to another: they go from the first once they are verified in the second."""
    action.context.refuse_odd_tiers(source=fields.source, target=fields.target)
    if fields.source == fields.target:
        raise RequestError("target", "must be another tier than the source")
    chosen = await _chosen(action, fields)
    admin = action.context.admin

    def work(progress: Progress, dry_run: bool = False) -> dict[str, Any]:
        moved = admin.move(chosen.blocks, fields.source, fields.target, dry_run=dry_run, progress=progress)
        return outcome_body(moved, scope_of(action.caller))

    return await action.dry_or_begin("move", work, fields, idempotency_key)


@router.post("/warm", status_code=202, responses=DRY_OR_BEGUN)
async def warm(action: Acting, fields: WarmFields, idempotency_key: IdempotencyKey = None) -> Response:
    """Bring blocks into a fast tier as well; what no tier has of a prompt is computed first."""
    action.context.refuse_odd_tiers(target=fields.target)
    chosen = await _chosen(action, fields)
    admin = action.context.admin

    def work(progress: Progress, dry_run: bool = False) -> dict[str, Any]:
        num_absent = _num_absent(action, chosen)
        if num_absent and chosen.compute and not dry_run:
            chosen.compute()
        warmed = admin.warm(chosen.blocks, fields.target, dry_run=dry_run, progress=progress)
        return outcome_body(warmed, scope_of(action.caller), num_absent)

    return await action.dry_or_begin("warm", work, fields, idempotency_key)


@router.post("/verify", status_code=202, responses=BEGUN)
async def verify(
    action: ByAdmins, fields: SelectionFields, idempotency_key: IdempotencyKey = None
) -> Response:
    """Read copies of blocks in every tier and compare them with their checksums; what is bad goes."""
    chosen = await _chosen(action, fields)
    admin = action.context.admin
    return action.begin(
        "verify",
        lambda progress: verification_body(admin.verify(chosen.blocks, progress=progress)),
        fields,
        idempotency_key,
    )


@router.post("/clear", status_code=202, responses=BEGUN)
async def clear(
    action: ByOperators, fields: ClearTierFields, idempotency_key: IdempotencyKey = None
) -> Response:
    """Remove everything that is not in use from a tier or from all; all of them: ends quarantines, too."""
    action.on |= fields.model_dump(exclude_none=True)
    if fields.tier == DEVICE:
        action.context.need_model("clearing the engine's own pool")
    else:
        action.context.refuse_odd_tiers(tier=fields.tier)
    return action.begin("clear", lambda _: {"blocks": _clear(action, fields.tier)}, fields, idempotency_key)


def _clear(action: Action, tier: str | None) -> int:
    store, model = action.context.store, action.context.model
    if model is not None and tier in {None, DEVICE}:
        model.write_computed()  # what comes to the tiers only later would be there again
        before = store.statistics().tiers[0].num_blocks
        model.clear_pool()
        if tier == DEVICE:
            return before - store.statistics().tiers[0].num_blocks
    return store.clear(tier)


async def _chosen(action: Action, fields: SelectionFields) -> Chosen:
    """Return the blocks that are meant, noted; only of what changes nothing for whoever may not change."""
    if not isinstance(fields, DryFields) or not fields.dry_run:
        action.caller.require(Role.ADMIN)
    chosen = await chosen_by(action.context, action.caller, fields.selection)
    action.on |= chosen.told | fields.model_dump(
        mode="json", exclude={"selection", "dry_run"}, exclude_none=True
    )
    return chosen


def _num_absent(action: Action, chosen: Chosen) -> int:
    """Return how many blocks of a prompt no tier stores, which have to be computed."""
    context = action.context
    if context.model is None or chosen.compute is None or chosen.keys is None:
        return 0
    context.model.write_computed()
    return context.store.copies.where(chosen.keys).count(())
