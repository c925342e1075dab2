"""Jobs, and the log of what was done."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from api.admin.acting import ByAdmins
from api.admin.context import Shared, scope_of
from api.admin.fields import Cursor, Limit, page
from api.admin.job_views import EntryList, EntryView, JobList, JobView
from api.error_schema import errors
from api.tenancy import Caller, Overseer

JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$", examples=["5ad1f00d5ad1f00d"])]

router = APIRouter(prefix="/admin", tags=["jobs"])


@router.get("/jobs")
async def list_jobs(
    context: Shared,
    caller: Caller,
    limit: Annotated[Limit, Query()] = 100,
    cursor: Annotated[Cursor | None, Query()] = None,
) -> JobList:
    """List the jobs that run, and those that ended within the last hour, the latest first."""
    jobs = context.jobs.of(scope_of(caller))
    shown, next_cursor = page(jobs, cursor, limit)
    return JobList(data=[JobView.of(job) for job in shown], next_cursor=next_cursor, total=len(jobs))


@router.get("/jobs/{id}", responses=errors(404))
async def get_job(context: Shared, caller: Caller, id: JobId) -> JobView:  # noqa: A002  as it is told
    """Tell how far a job has come."""
    return JobView.of(context.jobs.job(id, scope_of(caller)))


@router.delete("/jobs/{id}", responses=errors(403, 404))
async def cancel_job(action: ByAdmins, id: JobId) -> JobView:  # noqa: A002  as it is told
    """Have a job stop before its next step: what is done stays done. One that has ended stays as it is."""
    return JobView.of(action.context.jobs.cancel(id, scope_of(action.caller)))


@router.get("/log", responses=errors(403))
async def list_actions(
    context: Shared,
    _: Overseer,
    limit: Annotated[Limit, Query()] = 100,
    cursor: Annotated[Cursor | None, Query()] = None,
) -> EntryList:
    """List the administrative actions since the start, the last thousand of them, the latest first."""
    entries = context.log.entries()
    shown, next_cursor = page(entries, cursor, limit)
    return EntryList(
        data=[EntryView.of(entry) for entry in shown], next_cursor=next_cursor, total=len(entries)
    )
