"""Faults that others shipped, cases 2, 4 and 13 of the collection, under load."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Event as Flag

from api.bench.reload_line import Line, Speed
from api.bench.reload_plan import Trouble
from backends.disk import DiskBackend
from benchmarks.on_gpu.findings import Budget, Findings
from benchmarks.on_gpu.served import Bench, Served, greedy
from benchmarks.on_gpu.sizes import BLOCK_TOKENS
from engine_adapter.engine.events import Completion, Delta, Event, Finished
from engine_adapter.engine.request import CacheUse, Request
from kvstore.errors import one_line

_SEED = 51
_WAIT_S = 30.0
_SHORT_TOKENS = 20
_READS_BEFORE_STALL = 2


def cases_under_load(bench: Bench, budget: Budget) -> Findings:
    """Run the cases in fp32, where answers are equal by tokens."""
    findings = Findings()
    for name, case in _CASES.items():
        if budget.is_spent:
            findings.require(name, holds=False, value="not run: no time was left")
            continue
        began_s = time.monotonic()
        reason = _reason_against(case, bench)
        took_s = time.monotonic() - began_s
        findings.require(name, not reason, reason or f"clean answers, nothing leaked, {took_s:.1f} s")
        findings.figures[name] = {"holds": not reason, "seconds": took_s}
    return findings


def _reason_against(case: Callable[[Bench], None], bench: Bench) -> str:
    """Return what went wrong, empty if nothing did."""
    try:
        case(bench)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other cases are to be run
        return one_line(error) or type(error).__name__
    return ""


def _case_2(bench: Bench) -> None:
    """Ask for the same prompt four times with the device's cache off and the host tier on."""
    (prompt,) = bench.prompts(1, bench.size.cases.prompt_tokens, _SEED)
    request = greedy(prompt, bench.size.answer_tokens)
    num_whole = len(prompt) // BLOCK_TOKENS * BLOCK_TOKENS
    answers: list[Completion] = []
    with bench.serve(bench.exact_model) as served:
        clean = _clean(served, request)
        with _short_requests(bench, served):
            for _ in range(4):
                answers.append(served.answer(request))
                served.keep_from("host")
        served.check_at_rest()
    assert all(answer.token_ids == clean for answer in answers), "an answer differs"
    from_host = [answer.usage.tokens_by_source.get("host", 0) for answer in answers]
    assert from_host == [0, *[num_whole] * 3], f"tokens from host: {from_host}"


def _case_4(bench: Bench) -> None:
    """Ask for the same prompt, and another one, many times at once, in a pool too small for both."""
    cases = bench.size.cases
    most_tokens = cases.pool_blocks * BLOCK_TOKENS
    first, second = (bench.prompts(1, most_tokens * share // 10, _SEED + share)[0] for share in (5, 4))
    requests = [greedy(first, 6)] * cases.at_once + [greedy(second, 6)] * (cases.at_once // 2)
    with bench.serve(bench.exact_model, pool_bytes=_pool_bytes(bench)) as served:
        clean = {len(prompt): _clean(served, greedy(prompt, 6)) for prompt in (first, second)}
        for number in range(cases.rounds):
            random.Random(number).shuffle(requests)  # noqa: S311 - the same order in every run
            answers = served.answers_together(requests)
            for request, answer in zip(requests, answers, strict=True):
                assert answer.token_ids == clean[len(request.prompt_ids)], (
                    f"an answer of round {number} differs"
                )
            served.check_at_rest()
            served.keep_from("disk" if number % 2 else "host")


def _case_13_cancelled(bench: Bench) -> None:
    """Cancel requests whose loads are under way, and ask again before the loads have ended."""
    cases = bench.size.cases
    with _stalling(bench) as (served, line):
        with _short_requests(bench, served):
            for prompt in bench.prompts(cases.rounds, cases.loaded_tokens, _SEED + 1):
                request = greedy(prompt, bench.size.answer_tokens)
                clean = _clean(served, request)
                served.store(prompt)
                served.keep_from("disk")
                with _stalled(line):
                    cancelled = _Asked(served, request)
                    _wait_until(lambda: served.serving.store.num_holds > 0, "a load is under way")
                    cancelled.cancel()
                    assert cancelled.finished().reason == "cancelled", "a cancelled request went on"
                    again = _Asked(served, request)
                again.finished()
                assert again.token_ids == clean, "the answer after a cancelled one differs"
        served.check_at_rest()


def _case_13_preempted(bench: Bench) -> None:
    """Let a request be preempted while its loads are under way, by others that grow."""
    cases = bench.size.cases
    prompts = bench.prompts(cases.num_growing, BLOCK_TOKENS, _SEED + 2)
    growing = [greedy(each, cases.grown_tokens, CacheUse.OFF) for each in prompts]
    (prompt,) = bench.prompts(1, cases.loaded_tokens, _SEED + 3)
    # The first of all is never preempted; the second has computed nothing, and gives way before the others.
    requests = [growing[0], greedy(prompt, bench.size.answer_tokens), *growing[1:]]
    with _stalling(bench) as (served, line):
        clean = [_clean(served, request) for request in requests]
        served.store(prompt)
        served.keep_from("disk")
        with _stalled(line):
            asked = [_Asked(served, request) for request in requests]
            for each in (asked[0], *asked[2:]):
                each.finished()
            assert served.serving.engine.statistics().num_preempted > 0, "nothing was preempted"
        asked[1].finished()
        assert [each.token_ids for each in asked] == clean, "an answer differs"
        served.check_at_rest()


_CASES = {
    "case 2": _case_2,
    "case 4": _case_4,
    "case 13, cancelled": _case_13_cancelled,
    "case 13, preempted": _case_13_preempted,
}


class _Asked:
    """A request under way, and what was heard of it."""

    def __init__(self, served: Served, request: Request) -> None:
        self._engine = served.serving.engine
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._handle = self._engine.submit(request, self._events.put)
        self._ids: list[int] = []

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self._ids)

    def cancel(self) -> None:
        self._engine.cancel(self._handle)

    def finished(self) -> Finished:
        while not isinstance(event := self._next(), Finished):
            pass
        assert event.error is None, event.error
        return event

    def _next(self) -> Event:
        event = self._events.get(timeout=_WAIT_S)
        if isinstance(event, Delta):
            self._ids += event.token_ids
        return event


@contextmanager
def _short_requests(bench: Bench, served: Served) -> Iterator[None]:
    """Keep short requests going meanwhile. Raises ``AssertionError`` if an answer is not the clean one."""
    requests = [greedy(prompt, 4, CacheUse.OFF) for prompt in bench.prompts(4, _SHORT_TOKENS, _SEED + 4)]
    clean = [_clean(served, request) for request in requests]
    is_over = Flag()

    def keep_going() -> None:
        while not is_over.is_set():
            for request, ids in zip(requests, clean, strict=True):
                answer = served.serving.engine.generate(request)
                assert answer.token_ids == ids, "a short answer beside it differs"

    with ThreadPoolExecutor(1) as threads:
        going = threads.submit(keep_going)
        try:
            yield
        finally:
            is_over.set()
        going.result()


@contextmanager
def _stalling(bench: Bench) -> Iterator[tuple[Served, Line]]:
    """Serve from a disk whose reads can be held up, with a small pool."""
    lines: list[Line] = []

    def open_disk(path: Path) -> Line:
        lines.append(Line(DiskBackend(path)))
        return lines[-1]

    with bench.serve(bench.exact_model, ("disk",), _pool_bytes(bench), open_disk) as served:
        yield served, lines[0]


@contextmanager
def _stalled(line: Line) -> Iterator[None]:
    """Hold up all but the first reads until it ends."""
    line.set(Speed(1e12, 0.0, Trouble.STALLS, _READS_BEFORE_STALL))
    try:
        yield
    finally:
        line.settle()


def _clean(served: Served, request: Request) -> tuple[int, ...]:
    return served.answer(greedy(request.prompt_ids, request.sampling.max_tokens or 1, CacheUse.OFF)).token_ids


def _pool_bytes(bench: Bench) -> int:
    return bench.size.cases.pool_blocks * bench.exact_model.kv_shape.block_bytes


def _wait_until(holds: Callable[[], bool], what: str) -> None:
    ends_s = time.monotonic() + _WAIT_S
    while not holds():
        assert time.monotonic() < ends_s, f"waited in vain until {what}"
        time.sleep(0.002)
