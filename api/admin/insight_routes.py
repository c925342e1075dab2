"""What a server with a model decides and why, and how far it trusts its tiers. A store alone has no model."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api.admin.acting import ByOperators
from api.admin.context import Shared
from api.admin.fields import Cursor, Limit, page
from api.admin.insight_fields import ExplainFields, ModeFields
from api.admin.insight_views import AccountList, AccountView, ExplanationView, LearningView, ModeView
from api.error_schema import errors
from api.tenancy import Caller, Overseer

router = APIRouter(prefix="/admin", tags=["decisions"])


@router.get("/plans", responses=errors(400))
async def list_plans(
    context: Shared,
    caller: Caller,
    limit: Annotated[Limit, Query()] = 20,
    cursor: Annotated[Cursor | None, Query()] = None,
) -> AccountList:
    """List what was decided about the last requests and what came of it, the latest first."""
    plans = context.need_model("deciding about requests").plans(caller)
    shown, next_cursor = page(plans, cursor, limit)
    accounts = [AccountView.model_validate(plan) for plan in shown]
    return AccountList(data=accounts, next_cursor=next_cursor, total=len(plans))


@router.post("/explain", responses=errors(404))
async def explain(context: Shared, caller: Caller, fields: ExplainFields) -> ExplanationView:
    """Say what would be done with a prompt and why, and why its first missing block is missing."""
    explained = await context.need_model("explaining a prompt").explain(caller, fields)
    return ExplanationView.model_validate(explained)


@router.get("/shadows", responses=errors(400, 403))
async def get_shadows(context: Shared, _: Overseer) -> LearningView:
    """Tell what shadow policies would have hit, and how far the recording of a trace has come."""
    return LearningView.model_validate(context.need_model("learning from traffic").learning())


@router.get("/mode", responses=errors(400))
async def get_mode(context: Shared, _: Caller) -> ModeView:
    """Tell the mode of requests that name none."""
    return ModeView(mode=context.need_model("a mode").mode())


@router.put("/mode", responses=errors(403))
async def set_mode(action: ByOperators, fields: ModeFields) -> ModeView:
    """Set the mode of requests that name none and come from now on."""
    action.on["mode"] = fields.mode
    action.context.need_model("a mode").set_mode(fields.mode)
    return ModeView(mode=fields.mode)
