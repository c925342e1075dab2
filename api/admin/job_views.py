"""What the administration tells of jobs and of what was done."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from api.admin.audit_log import Entry
from api.admin.fields import Listed, list_of, seconds
from api.admin.jobs import Job
from api.examples import AT, DIGEST, example


class JobView(BaseModel):
    """A long operation. ``state`` is ``running``, ``done``, ``cancelled`` or ``failed``.

    ``result`` is there when it is done, ``error`` when it has failed; ``total`` once it is known.
    """

    model_config = example(
        id="5ad1f00d5ad1f00d", kind="evict", state="running", done=12, total=64, started_at=AT,
        ended_at=None, result=None, error=None,
    )  # fmt: skip

    id: str
    kind: str
    state: str
    done: int
    total: int | None
    started_at: float
    ended_at: float | None
    result: dict[str, Any] | None
    error: str | None

    @classmethod
    def of(cls, job: Job) -> JobView:
        """Return what is told of a job now."""
        return cls(
            id=job.id,
            kind=job.kind,
            state=job.state.value,
            done=job.progress.done,
            total=job.progress.total or None,
            started_at=job.started_ms / 1000,
            ended_at=seconds(job.ended_ms),
            result=None if job.result is None else dict(job.result),
            error=job.error,
        )


class JobList(Listed[JobView]):
    """Jobs, the latest first."""

    model_config = list_of(JobView)


class EntryView(BaseModel):
    """One administrative action: who, by the token's name, did what, on what, and what came of it."""

    model_config = example(
        at=AT, who="alice", tenant=None, action="POST /admin/evict", on={"keys": [DIGEST], "num_keys": 1},
        outcome="begun", job="5ad1f00d5ad1f00d",
    )  # fmt: skip

    at: float
    who: str
    tenant: str | None
    action: str
    on: dict[str, Any]
    outcome: str
    job: str | None

    @classmethod
    def of(cls, entry: Entry) -> EntryView:
        """Return what is told of an action."""
        return cls(
            at=entry.at, who=entry.who, tenant=entry.tenant, action=entry.action, on=dict(entry.on),
            outcome=entry.outcome, job=entry.job,
        )  # fmt: skip


class EntryList(Listed[EntryView]):
    """Actions, the latest first."""

    model_config = list_of(EntryView)
