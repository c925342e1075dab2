"""Namespaces: what each has, how much it may have, and away with an old one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from api.admin.acting import Acting, Action, ByOperators, IdempotencyKey
from api.admin.change_routes import DRY_OR_BEGUN
from api.admin.context import Shared, scope_of
from api.admin.fields import Cursor, Digest, Limit, page
from api.admin.keeping_views import BudgetView
from api.admin.outcome_views import outcome_body
from api.admin.requests import BudgetFields
from api.admin.telling import namespace_view
from api.admin.views import NamespaceList
from api.error_schema import errors
from api.tenancy import Caller
from kvstore.admin.progress import Progress
from kvstore.errors import AbsentError
from kvstore.remote.tenancy import Role

Named = Annotated[Digest, Path()]

router = APIRouter(prefix="/admin", tags=["namespaces"])


@router.get("/namespaces", response_model=NamespaceList)
async def list_namespaces(
    context: Shared,
    caller: Caller,
    limit: Annotated[Limit, Query()] = 100,
    cursor: Annotated[Cursor | None, Query()] = None,
) -> Response:
    """List the namespaces that have blocks: which model, whose, how many bytes where, and the last hit."""
    scope, budgets = scope_of(caller), context.rules.now.namespaces

    def build() -> NamespaceList:
        found = context.admin.namespaces(scope)
        shown, next_cursor = page(found, cursor, limit)
        views = [namespace_view(space, budgets.get(space.digest, {})) for space in shown]
        return NamespaceList(data=views, next_cursor=next_cursor, total=len(found))

    return await context.told(build)


@router.delete("/namespaces/{digest}", status_code=202, responses=DRY_OR_BEGUN)
async def drop_namespace(
    action: Acting,
    digest: Named,
    dry_run: Annotated[bool, Query()] = False,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Remove all that there is of a namespace, such as an old model's; what is in use or pinned stays."""
    if not dry_run:
        action.caller.require(Role.ADMIN)
    await _require(action, digest)
    admin, scope = action.context.admin, scope_of(action.caller)

    def work(progress: Progress, dry_run: bool = False) -> dict[str, Any]:
        gone = admin.drop_namespace(bytes.fromhex(digest), dry_run=dry_run, progress=progress)
        return outcome_body(gone, scope)

    return await action.dry_or_begin("drop namespace", work, None, idempotency_key, is_dry=dry_run)


@router.put("/namespaces/{digest}/budget", responses=errors(403))
async def set_budget(action: ByOperators, digest: Named, fields: BudgetFields) -> BudgetView:
    """Bound the bytes of a namespace by tier, until the next start: then the file of rules counts."""
    action.on |= fields.model_dump()
    rules = action.context.rules
    budget = await action.now(lambda: rules.budget_namespace(bytes.fromhex(digest), fields.tiers))
    return BudgetView(digest=digest, tiers=dict(budget))


async def _require(action: Action, digest: str) -> None:
    """Raise ``AbsentError`` unless the caller may see such a namespace."""
    admin, scope = action.context.admin, scope_of(action.caller)
    found = await action.now(lambda: admin.namespaces(scope))
    if bytes.fromhex(digest) not in {space.digest for space in found}:
        raise AbsentError("namespace", digest)
