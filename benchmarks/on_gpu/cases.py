"""Faults that others shipped, cases 2, 4 and 13 of the collection, under load."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Event as Flag
from threading import Thread

from api.bench.reload_line import Line, Speed
from api.bench.reload_plan import Trouble
from backends.disk import DiskBackend
from benchmarks.on_gpu.findings import Budget, Findings
from benchmarks.on_gpu.served import Bench, Served, greedy
from benchmarks.on_gpu.sizes import BLOCK_TOKENS
from engine_adapter.engine.request import CacheUse, Delta, Event, Finished, Request

_SEED = 51
_WAIT_S = 30.0
_SHORT_TOKENS = 20
_READS_BEFORE_STALL = 2


def cases_under_load(bench: Bench, budget: Budget) -> Findings:
    """Run the cases in fp32, where answers are equal by tokens."""
    findings = Findings()
    for case in (_case_2, _case_4, _case_13_cancelled, _case_13_preempted):
        name = case.__name__.strip("_").replace("_", " ")
        if budget.is_spent:
            findings.require(name, holds=False, value="not run: no time was left")
            continue
        began_s = time.monotonic()
        reason = case(bench)
        took_s = time.monotonic() - began_s
        findings.require(name, not reason, reason or f"clean answers, nothing leaked, {took_s:.1f} s")
        findings.figures[name] = {"ok": not reason, "seconds": took_s}
    return findings


def _case_2(bench: Bench) -> str:
    """Ask for the same prompt four times with the device's cache off and the host tier on."""
    (prompt,) = bench.prompts(1, bench.size.cases.prompt_tokens, _SEED)
    request = greedy(prompt, bench.size.answer_tokens)
    num_whole = len(prompt) // BLOCK_TOKENS * BLOCK_TOKENS
    with bench.serve(bench.exact_model) as served:
        clean = _clean(served, request)
        with _short_requests(bench, served) as load:
            answers = []
            for _ in range(4):
                answers.append(served.answer(request))
                served.keep_from("host")
        served.check_at_rest()
    if any(answer.token_ids != clean for answer in answers):
        return "an answer differs"
    from_host = [answer.usage.tokens_by_source.get("host", 0) for answer in answers]
    return load.fault if from_host == [0, *[num_whole] * 3] else f"tokens from host: {from_host}"


def _case_4(bench: Bench) -> str:
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
            pairs = zip(requests, answers, strict=True)
            if any(answer.token_ids != clean[len(request.prompt_ids)] for request, answer in pairs):
                return f"an answer differs in round {number}"
            served.check_at_rest()
            served.keep_from("disk" if number % 2 else "host")
    return ""


def _case_13_cancelled(bench: Bench) -> str:
    """Cancel requests whose loads are under way, and ask again before the loads have ended."""
    cases = bench.size.cases
    with _stalling(bench) as (served, line), _short_requests(bench, served) as load:
        for prompt in bench.prompts(cases.rounds, cases.loaded_tokens, _SEED + 1):
            request = greedy(prompt, bench.size.answer_tokens)
            clean = _clean(served, request)
            served.store(prompt)
            served.keep_from("disk")
            _stall(line)
            cancelled, again = _Asked(served, request), None
            try:
                _wait_until(lambda: served.serving.store.num_holds > 0, "a load is under way")
                cancelled.cancel()
                if cancelled.finished().reason != "cancelled":
                    return "a request that was cancelled went on"
                again = _Asked(served, request)
            finally:
                line.settle()
            again.finished()
            if again.token_ids != clean:
                return "the answer differs after a cancelled one"
    return load.fault


def _case_13_preempted(bench: Bench) -> str:
    """Let a request be preempted while its loads are under way, by others that grow."""
    cases = bench.size.cases
    prompts = bench.prompts(cases.num_growing, BLOCK_TOKENS, _SEED + 2)
    growing = [greedy(each, cases.grown_tokens, CacheUse.OFF) for each in prompts]
    (prompt,) = bench.prompts(1, cases.loaded_tokens, _SEED + 3)
    loading = greedy(prompt, bench.size.answer_tokens)
    with _stalling(bench) as (served, line):
        clean = [_clean(served, request) for request in (*growing, loading)]
        served.store(prompt)
        served.keep_from("disk")
        _stall(line)
        try:
            asked = [_Asked(served, request) for request in growing]
            for each in asked:
                each.wait_for_token()
            asked.append(_Asked(served, loading))
            for each in asked[:-1]:
                each.finished()
            num_preempted = served.serving.engine.statistics().num_preempted
        finally:
            line.settle()
        asked[-1].finished()
        if [each.token_ids for each in asked] != clean:
            return "an answer differs"
        served.check_at_rest()
    return "" if num_preempted else "nothing was preempted"


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

    def wait_for_token(self) -> None:
        event = self._next()
        assert isinstance(event, Delta), event

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


@dataclass
class _Load:
    """Short requests that go on beside others; ``fault`` says what went wrong with them."""

    fault: str = ""
    is_over: Flag = field(default_factory=Flag)

    def run(self, served: Served, requests: Sequence[Request], clean: Sequence[tuple[int, ...]]) -> None:
        while not self.is_over.is_set() and not self.fault:
            for request, ids in zip(requests, clean, strict=True):
                answer = served.serving.engine.generate(request)
                if answer.token_ids != ids:
                    self.fault = f"a short answer beside it differs: {answer.error}"


@contextmanager
def _short_requests(bench: Bench, served: Served) -> Iterator[_Load]:
    """Keep short requests going; when it ends, they have."""
    requests = [greedy(prompt, 4, CacheUse.OFF) for prompt in bench.prompts(4, _SHORT_TOKENS, _SEED + 4)]
    load = _Load()
    thread = Thread(target=load.run, args=(served, requests, [_clean(served, each) for each in requests]))
    thread.start()
    try:
        yield load
    finally:
        load.is_over.set()
        thread.join()


@contextmanager
def _stalling(bench: Bench) -> Iterator[tuple[Served, Line]]:
    """Serve from a disk whose reads can be held up, with a small pool."""
    lines: list[Line] = []

    def open_disk(path: Path) -> Line:
        lines.append(Line(DiskBackend(path)))
        return lines[-1]

    with bench.serve(bench.exact_model, ("disk",), _pool_bytes(bench), open_disk) as served:
        yield served, lines[0]


def _stall(line: Line) -> None:
    line.set(Speed(1e12, 0.0, Trouble.STALLS, _READS_BEFORE_STALL))


def _clean(served: Served, request: Request) -> tuple[int, ...]:
    return served.answer(greedy(request.prompt_ids, request.sampling.max_tokens or 1, CacheUse.OFF)).token_ids


def _pool_bytes(bench: Bench) -> int:
    return bench.size.cases.pool_blocks * bench.exact_model.kv_shape.block_bytes


def _wait_until(holds: Callable[[], bool], what: str) -> None:
    ends_s = time.monotonic() + _WAIT_S
    while not holds():
        assert time.monotonic() < ends_s, f"waited in vain until {what}"
        time.sleep(0.002)
