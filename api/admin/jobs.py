"""Long operations: begun by one request, looked at and cancelled by others."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from threading import Condition, Lock
from typing import Any, NamedTuple

from kvstore.admin.progress import Progress
from kvstore.clock import Clock
from kvstore.errors import AbsentError, ConflictError, OverloadedError, PrefixdError

_log = logging.getLogger(__name__)

Result = Mapping[str, Any]


class JobState(Enum):
    """How far a job has come."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Repeat(NamedTuple):
    """Names a request that a client may send again; ``content`` tells whether it is the same one."""

    token: str
    key: str
    content: bytes


@dataclass(slots=True)
class Job:
    """One operation. ``tenant`` is whose it is (``None``: the operator's); times are epoch ms."""

    id: str
    kind: str
    tenant: str | None
    started_ms: int
    progress: Progress = field(default_factory=Progress)
    state: JobState = JobState.RUNNING
    ended_ms: int | None = None
    result: Result | None = None
    error: str | None = None


Work = Callable[[Progress], Result]
OnChange = Callable[[Job], None]


class Jobs:
    """Runs jobs on a few threads of their own; a bounded number waits, and fewer of one tenant. Thread-safe.

    Those that have ended are kept for ``kept_ms``, the last ``most_kept`` of them.
    """

    def __init__(
        self,
        clock: Clock,
        num_threads: int = 2,
        most_open: int = 32,
        most_open_each: int = 8,
        most_kept: int = 256,
        kept_ms: int = 3_600_000,
    ) -> None:
        self._clock = clock
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="job")
        self._most_open = most_open
        self._most_open_each = most_open_each
        self._most_kept = most_kept
        self._kept_ms = kept_ms
        self._jobs: dict[str, Job] = {}
        self._repeats: dict[tuple[str, str], tuple[bytes, str]] = {}
        self._lock = Lock()
        self._ended = Condition(self._lock)
        self._num_open = 0
        self._is_open = True

    def begin(
        self, kind: str, tenant: str | None, work: Work, on_change: OnChange, repeat: Repeat | None = None
    ) -> Job:
        """Begin a job, or find the one that the same request has begun.

        ``on_change`` hears of a new one before it begins, and on its thread when it has ended. Raises
        ``OverloadedError``, or ``ConflictError`` when the repeat's key named another request.
        """
        with self._lock:
            self._sweep()
            if known := self._known(repeat):
                return known
            self._refuse_too_many(tenant)
            job = Job(secrets.token_hex(8), kind, tenant, self._clock.wall_ms())
            self._jobs[job.id] = job
            if repeat:
                self._repeats[repeat.token, repeat.key] = repeat.content, job.id
            on_change(job)
            self._threads.submit(self._run, job, work, on_change)
            self._num_open += 1
        return job

    def of(self, tenant: str | None) -> list[Job]:
        """Return the jobs that a tenant may see, the latest first; ``None``: all."""
        with self._lock:
            self._sweep()
            return [job for job in reversed(self._jobs.values()) if tenant in {None, job.tenant}]

    def job(self, job_id: str, tenant: str | None) -> Job:
        """Return one of them. Raises ``AbsentError``."""
        job = next((job for job in self.of(tenant) if job.id == job_id), None)
        if job is None:
            raise AbsentError("job", job_id)
        return job

    def cancel(self, job_id: str, tenant: str | None) -> Job:
        """Have a job stop soon; one that has ended stays as it is. Raises ``AbsentError``."""
        job = self.job(job_id, tenant)
        job.progress.cancel()
        return job

    def close(self) -> None:
        """Cancel all jobs; returns without waiting for their ends. Idempotent."""
        with self._lock:
            self._is_open = False
            for job in self._jobs.values():
                job.progress.cancel()
        self._threads.shutdown(wait=False)

    def wait(self, timeout_s: float) -> bool:
        """Block until all have ended, at most so long; says whether they have."""
        with self._lock:
            return self._ended.wait_for(lambda: not self._num_open, timeout_s)

    def _refuse_too_many(self, tenant: str | None) -> None:
        tenants = [job.tenant for job in self._jobs.values() if job.state is JobState.RUNNING]
        is_greedy = tenant is not None and tenants.count(tenant) >= self._most_open_each
        if is_greedy or len(tenants) >= self._most_open or not self._is_open:
            raise OverloadedError(len(tenants))

    def _run(self, job: Job, work: Work, on_change: OnChange) -> None:
        state, result, error = JobState.CANCELLED, None, None
        try:
            if not job.progress.is_cancelled:
                result = work(job.progress)
                state = JobState.CANCELLED if result.get("is_cancelled") else JobState.DONE
        except PrefixdError as known:
            state, error = JobState.FAILED, str(known)
        except Exception as unforeseen:  # noqa: BLE001 - a job's thread has nobody else to tell
            _log.error("the job %s (%s) failed: %s", job.id, job.kind, type(unforeseen).__name__)
            state, error = JobState.FAILED, "the server failed; its log says where"
        with self._lock:
            job.result, job.error, job.ended_ms = result, error, self._clock.wall_ms()
            job.state = state
        try:
            on_change(job)
        finally:
            with self._ended:
                self._num_open -= 1
                self._ended.notify_all()

    def _known(self, repeat: Repeat | None) -> Job | None:
        """Return the job of the same request, if there was one. Raises ``ConflictError``."""
        if repeat is None or (repeat.token, repeat.key) not in self._repeats:
            return None
        content, job_id = self._repeats[repeat.token, repeat.key]
        if content != repeat.content:
            raise ConflictError("this Idempotency-Key was sent with another request; choose a new one")
        return self._jobs[job_id]

    def _sweep(self) -> None:
        """Forget jobs that ended long ago, and those beyond the bound."""
        ended = [job for job in self._jobs.values() if job.ended_ms is not None]
        since_ms = self._clock.wall_ms() - self._kept_ms
        num_beyond = len(ended) - self._most_kept
        for number, job in enumerate(ended):
            if number < num_beyond or (job.ended_ms or 0) < since_ms:
                del self._jobs[job.id]
        self._repeats = {name: known for name, known in self._repeats.items() if known[1] in self._jobs}
