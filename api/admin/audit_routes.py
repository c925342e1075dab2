"""The audit in idle time: what it found, and how much of that time it may take."""

from __future__ import annotations

from fastapi import APIRouter

from api.admin.acting import ByOperators
from api.admin.audit_views import AuditFields, AuditView
from api.admin.context import Shared
from api.error_schema import errors
from api.tenancy import Overseer

router = APIRouter(prefix="/admin", tags=["decisions"])

_WHAT = "computing stored blocks once more"


@router.get("/audit", responses=errors(400, 403, 429))
async def get_audit(context: Shared, _: Overseer) -> AuditView:
    """Tell what was computed once more in idle time and compared with what is stored, and what was wrong."""
    return AuditView.of(await context.threads.run(context.need_model(_WHAT).audit))


@router.put("/audit", responses=errors(403, 429))
async def set_audit(action: ByOperators, fields: AuditFields) -> AuditView:
    """Set how much of the idle time the audit may take: 0 stops it, and forgets all prompts it remembers."""
    action.on["share"] = fields.share
    model = action.context.need_model(_WHAT)
    model.set_audit_share(fields.share)
    return AuditView.of(await action.now(model.audit))
