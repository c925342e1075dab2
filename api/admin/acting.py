"""Changing something: by whom, noted whatever comes of it, and as a job where it may take long."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import Depends, Header, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from api.admin.context import AdminContext, Shared, scope_of
from api.admin.job_views import JobView
from api.admin.jobs import Job, JobState, Repeat, Work
from api.admin.requests import DryFields
from api.http_errors import error_answer
from api.tenancy import Caller
from kvstore.admin.progress import Progress
from kvstore.errors import PrefixdError
from kvstore.remote.tenancy import Role, Tenant

_T = TypeVar("_T")
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1, max_length=128, pattern=r"^[!-~]+$",
        description="The same key from the same caller finds the job that the first request began.",
    ),
]  # fmt: skip


class DryWork(Protocol):
    """A job that can also tell only what it would do."""

    def __call__(self, progress: Progress, dry_run: bool = False) -> dict[str, Any]: ...


@dataclass
class Action:
    """What one request does, for the audit log: ``on`` holds digests and numbers, never a prompt."""

    context: AdminContext
    caller: Tenant
    name: str
    path: str
    on: dict[str, Any] = field(default_factory=dict)
    is_noted: bool = True

    def note(self, outcome: str) -> None:
        """Write down what came of it."""
        if self.is_noted:
            who, tenant = who_is(self.caller), scope_of(self.caller)
            self.context.log.add(who, tenant, self.name, self.on, outcome)

    async def now(self, call: Callable[[], _T]) -> _T:
        """Do something that is soon done, off the event loop."""
        return await self.context.threads.run(call)

    async def dry_or_begin(
        self, kind: str, work: DryWork, fields: DryFields | None, key: str | None, *, is_dry: bool = False
    ) -> Response:
        """Answer at once with what would be done, noting nothing, or begin to do it."""
        if not (fields.dry_run if fields else is_dry):
            return self.begin(kind, work, fields, key)
        self.is_noted = False
        return JSONResponse(await self.now(lambda: work(Progress(), dry_run=True)))

    def begin(
        self, kind: str, work: Work, fields: BaseModel | None, key: str | None, content: bytes = b""
    ) -> Response:
        """Begin a job, or find the one that the same request has begun, and answer with it.

        ``content`` tells it from another with the same ``fields``.
        """
        repeat = Repeat(who_is(self.caller), key, self._content(fields) + content) if key else None
        job = self.context.jobs.begin(kind, scope_of(self.caller), work, self._note_job, repeat)
        self.is_noted = False  # it was, when the job began
        return JSONResponse(JobView.of(job).model_dump(mode="json"), 202)

    def _note_job(self, job: Job) -> None:
        """Write down that a job has begun, or how it ended."""
        who, tenant = who_is(self.caller), scope_of(self.caller)
        outcome = "begun" if job.state is JobState.RUNNING else job.state.value
        self.context.log.add(who, tenant, self.name, self.on, outcome, job.id)

    def _content(self, fields: BaseModel | None) -> bytes:
        body = fields.model_dump(mode="json") if fields else {}
        text = json.dumps([self.name, self.path, body], sort_keys=True)
        return blake2b(text.encode(), digest_size=16).digest()


def who_is(caller: Tenant) -> str:
    """Return the name of a caller's token."""
    return caller.token_name or caller.name or "operator"


async def acting(request: Request, context: Shared, caller: Caller) -> AsyncIterator[Action]:
    """Note what a request does, or tries to; whoever handles it says who may."""
    name = f"{request.method} {request.scope['route'].path}"
    action = Action(context, caller, name, request.url.path, dict(request.path_params))
    try:
        yield action
    except PrefixdError as refusal:
        status, body = error_answer(refusal)
        action.note(f"refused: {body['error']['code'] or status}")
        raise
    except RequestValidationError:
        action.note("refused: 400")
        raise
    except HTTPException as refusal:
        action.note(f"refused: {refusal.status_code}")
        raise
    except Exception:
        action.note("failed")
        raise
    else:
        action.note("done")


Acting = Annotated[Action, Depends(acting)]


async def _by_admins(action: Acting) -> Action:
    action.caller.require(Role.ADMIN)
    return action


async def _by_operators(action: Acting) -> Action:
    action.caller.require_operator()
    return action


ByAdmins = Annotated[Action, Depends(_by_admins)]
ByOperators = Annotated[Action, Depends(_by_operators)]
