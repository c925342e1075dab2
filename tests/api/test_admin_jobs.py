"""Long operations: begun once, looked at, cancelled, and forgotten in time."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from api.admin.jobs import Job, Jobs, JobState, Repeat
from kvstore.admin.progress import Progress
from kvstore.errors import AbsentError, ConflictError, OverloadedError, RequestError
from tests.eventually import eventually


class _Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def wall_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def jobs(clock: _Clock) -> Iterator[Jobs]:
    jobs = Jobs(clock, num_threads=1, most_open=3, most_kept=2, kept_ms=60_000)  # type: ignore[arg-type]  # as one
    yield jobs
    jobs.close()


def begun(jobs: Jobs, work: Any, repeat: Repeat | None = None, tenant: str | None = None) -> Job:
    return jobs.begin("evict", tenant, work, lambda _: None, repeat)


def ended(job: Job) -> Job:
    eventually(lambda: job.ended_ms is not None)
    return job


def test_a_job_tells_its_progress_and_its_result(jobs: Jobs) -> None:
    has_looked = Event()

    def work(progress: Progress) -> dict[str, Any]:
        progress.begin(3)
        progress.step()
        has_looked.wait(20)
        return {"blocks": 3}

    job = begun(jobs, work)
    eventually(lambda: job.progress.done == 1)
    assert (job.state, job.progress.total, job.result) == (JobState.RUNNING, 3, None)
    has_looked.set()
    assert (ended(job).state, job.result) == (JobState.DONE, {"blocks": 3})
    assert jobs.job(job.id, None) is job


def test_a_cancelled_job_stops_between_two_steps(jobs: Jobs) -> None:
    may_go_on = Event()

    def work(progress: Progress) -> dict[str, Any]:
        progress.begin(1000)
        while not progress.is_cancelled:
            progress.step()
            may_go_on.wait(20)
        return {"is_cancelled": True}

    job = begun(jobs, work)
    eventually(lambda: job.progress.done > 0)
    jobs.cancel(job.id, None)
    may_go_on.set()
    assert (ended(job).state, job.result) == (JobState.CANCELLED, {"is_cancelled": True})
    assert job.progress.done == 1


def test_one_that_is_cancelled_before_its_turn_is_not_begun(jobs: Jobs) -> None:
    may_end = Event()
    first = begun(jobs, lambda _: {"waited": may_end.wait(20)})
    second = begun(jobs, lambda _: pytest.fail("it was cancelled"))
    jobs.cancel(second.id, None)
    may_end.set()
    assert [ended(job).state for job in (first, second)] == [JobState.DONE, JobState.CANCELLED]


def test_one_that_ended_stays_as_it_is_when_it_is_cancelled(jobs: Jobs) -> None:
    job = ended(begun(jobs, lambda _: {}))
    assert jobs.cancel(job.id, None).state is JobState.DONE


def test_a_known_error_is_told_and_an_unforeseen_one_is_not(
    jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_: Progress) -> dict[str, Any]:
        raise RequestError("file", "is of another version")

    def broken(_: Progress) -> dict[str, Any]:
        raise LookupError("my secret prompt")

    assert ended(begun(jobs, refused)).error == "file: is of another version"
    job = ended(begun(jobs, broken))
    assert (job.state, job.error) == (JobState.FAILED, "the server failed; its log says where")
    assert "LookupError" in caplog.text
    assert "secret" not in caplog.text


def test_the_same_request_finds_its_job_and_another_with_its_key_is_refused(jobs: Jobs) -> None:
    repeat = Repeat("alice", "monday", b"evict all")
    first = begun(jobs, lambda _: {"number": 1}, repeat)
    assert begun(jobs, lambda _: {"number": 2}, repeat) is first
    assert ended(first).result == {"number": 1}
    assert begun(jobs, lambda _: {"number": 3}, repeat) is first
    with pytest.raises(ConflictError):
        begun(jobs, lambda _: {}, repeat._replace(content=b"evict nothing"))
    assert begun(jobs, lambda _: {}, repeat._replace(token="bob")) is not first
    assert begun(jobs, lambda _: {}, repeat._replace(key="tuesday")) is not first


def test_so_many_jobs_may_be_open(jobs: Jobs) -> None:
    may_end = Event()
    opened = [begun(jobs, lambda _: {"waited": may_end.wait(20)}) for _ in range(3)]
    with pytest.raises(OverloadedError):
        begun(jobs, lambda _: {})
    may_end.set()
    for job in opened:
        ended(job)
    begun(jobs, lambda _: {})


def test_one_tenant_does_not_take_all_places(clock: _Clock) -> None:
    jobs, may_end = Jobs(clock, num_threads=1, most_open=4, most_open_each=2), Event()  # type: ignore[arg-type]  # as one
    opened = [begun(jobs, lambda _: {"waited": may_end.wait(20)}, tenant="acme") for _ in range(2)]
    with pytest.raises(OverloadedError):
        begun(jobs, lambda _: {}, tenant="acme")
    opened += [begun(jobs, lambda _: {}, tenant=tenant) for tenant in ("zeno", None)]
    may_end.set()
    for job in opened:
        ended(job)
    jobs.close()


def test_ended_ones_are_forgotten_with_their_keys(jobs: Jobs, clock: _Clock) -> None:
    repeat = Repeat("alice", "monday", b"")
    first = ended(begun(jobs, lambda _: {}, repeat))
    clock.ms += 60_001
    with pytest.raises(AbsentError, match=f"there is no job {first.id}"):
        jobs.job(first.id, None)
    assert begun(jobs, lambda _: {}, repeat) is not first


def test_so_many_ended_ones_are_kept_and_the_latest_comes_first(jobs: Jobs) -> None:
    ids = [ended(begun(jobs, lambda _: {})).id for _ in range(5)]
    assert [job.id for job in jobs.of(None)] == [ids[4], ids[3]]


def test_a_tenant_sees_and_cancels_its_own(jobs: Jobs) -> None:
    mine, others = (ended(begun(jobs, lambda _: {}, tenant=tenant)) for tenant in ("acme", "zeno"))
    assert [job.id for job in jobs.of("acme")] == [mine.id]
    assert jobs.job(mine.id, "acme") is mine
    for call in (jobs.job, jobs.cancel):
        with pytest.raises(AbsentError):
            call(others.id, "acme")
    operators = begun(jobs, lambda _: {})
    assert operators.id not in {job.id for job in jobs.of("acme")}


def test_who_watches_hears_of_its_beginning_and_its_end(jobs: Jobs) -> None:
    heard: list[JobState] = []
    job = jobs.begin("evict", None, lambda _: {}, lambda job: heard.append(job.state))
    ended(job)
    eventually(lambda: heard == [JobState.RUNNING, JobState.DONE])


def test_closing_cancels_all_and_begins_none(jobs: Jobs) -> None:
    has_begun = Event()

    def work(progress: Progress) -> dict[str, Any]:
        has_begun.set()
        while not progress.is_cancelled:
            progress.step()
        return {"is_cancelled": True}

    job = begun(jobs, work)
    assert has_begun.wait(20)
    jobs.close()
    assert ended(job).state is JobState.CANCELLED
    with pytest.raises(OverloadedError):
        begun(jobs, lambda _: {})


def test_all_that_has_begun_is_told_to_have_ended_when_the_server_stops(clock: _Clock) -> None:
    jobs, told, may_end = Jobs(clock, num_threads=1), list[tuple[str, JobState]](), Event()  # type: ignore[arg-type]  # as one

    def work(progress: Progress) -> dict[str, Any]:
        may_end.wait(20)
        return {"is_cancelled": progress.is_cancelled}

    for kind in ("evict", "move"):
        jobs.begin(kind, None, work, lambda job: told.append((job.kind, job.state)))
    jobs.close()
    assert not jobs.wait(0.0)
    may_end.set()
    assert jobs.wait(20.0)
    assert told[2:] == [("evict", JobState.CANCELLED), ("move", JobState.CANCELLED)]
