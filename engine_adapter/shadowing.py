"""Shadow policies at work, on a thread of their own that takes a small share of a core at most."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

from kvstore.served import ServedPrompt, ServedQueue
from policies.shadows import ShadowReport, ShadowTier, marks_of

MOST_OF_A_CORE = 0.05

_MOST_SAVED_S = 0.5
_MEASURED_OVER_S = 60.0
_CALM_SHARE = 0.2
_LEAST_CALM_S = 600.0
_PAUSE_AFTER_A_STEP = 4.0


class Allowance:
    """Processor time that may be taken: it grows by a share of time, and is saved up to half a second."""

    def __init__(self, share: float, now_s: float) -> None:
        self._share = share
        self._left_s = _MOST_SAVED_S / 2
        self._at_s = now_s
        self._busy = 0.0

    def take(self, taken_s: float, now_s: float) -> None:
        """Note that processor time was taken."""
        self._busy = self.busy(now_s) + taken_s / _MEASURED_OVER_S
        self._left_s = min(_MOST_SAVED_S, self._left_s + self._share * (now_s - self._at_s)) - taken_s
        self._at_s = now_s

    def wait_s(self) -> float:
        """Return how long to take nothing, so that some is saved again; 0 while there is any."""
        return 0.0 if self._left_s >= 0 else (_MOST_SAVED_S / 2 - self._left_s) / self._share

    def busy(self, now_s: float) -> float:
        """Return the share that was taken lately, over about a minute."""
        return self._busy * math.exp((self._at_s - now_s) / _MEASURED_OVER_S)


@dataclass(frozen=True, slots=True)
class ShadowStatistics:
    """What shadows found, by tier; ``core_share`` is what they took of a core in about the last minute.

    ``num_dropped`` requests came faster than they were handled.
    """

    tiers: Mapping[str, ShadowReport]
    core_share: float
    num_dropped: int


class Shadowing:
    """Lets each tier's shadows serve what was served, behind a queue that never blocks who tells of it.

    Where more than ``most_of_a_core`` is taken, half as much is sampled from then on, and the thread waits
    until the share is kept again; what comes meanwhile may be dropped. After ten calm minutes the sample is
    doubled, up to what it was.
    """

    def __init__(
        self,
        tiers: Mapping[str, ShadowTier],
        most_of_a_core: float = MOST_OF_A_CORE,
        monotonic_s: Callable[[], float] = time.monotonic,
        taken_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """``taken_s`` returns the processor time of the thread that asks."""
        self._tiers = dict(tiers)
        self._most = most_of_a_core
        self._monotonic_s = monotonic_s
        self._taken_s = taken_s
        self._changed_s = monotonic_s()
        self._allowance = Allowance(most_of_a_core, self._changed_s)
        self._reports: Mapping[str, ShadowReport] = {}
        self._closing = Event()
        self._queue = ServedQueue("shadow policies", self._serve)

    def __call__(self, served: ServedPrompt) -> None:
        """Tell of a request; never blocks."""
        self._queue(served)

    def statistics(self) -> ShadowStatistics:
        """Return what was found so far; never blocks."""
        busy = self._allowance.busy(self._monotonic_s())
        return ShadowStatistics(self._reports, busy, self._queue.num_dropped)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Leave what waits, and end the thread; ``False``: that lasts longer. Idempotent."""
        self._closing.set()
        return self._queue.close(timeout_s)

    def _serve(self, served: ServedPrompt) -> None:
        if self._closing.is_set() or not (served.reads and served.writes):
            return
        with self._taking():
            marks, answer = marks_of(served.keys), marks_of(served.answer_keys)
            for tier in self._tiers.values():
                self._take_turns(tier.serve(served, marks, answer))
            reports = {name: tier.report() for name, tier in self._tiers.items()}
            self._reports = {name: report for name, report in reports.items() if report}
        self._keep_the_share()

    def _keep_the_share(self) -> None:
        if self._allowance.wait_s():
            self._change_rates(0.5, [tier for tier in self._tiers.values() if tier.can_halve])
            self._closing.wait(self._allowance.wait_s())
            return
        now_s = self._monotonic_s()
        is_calm = self._allowance.busy(now_s) < _CALM_SHARE * self._most
        if is_calm and now_s - self._changed_s >= _LEAST_CALM_S:
            self._change_rates(2.0, [tier for tier in self._tiers.values() if tier.rate < tier.wanted_rate])

    def _change_rates(self, factor: float, tiers: list[ShadowTier]) -> None:
        with self._taking():
            for tier in tiers:
                self._take_turns(tier.change_rate(min(tier.wanted_rate, tier.rate * factor)))
        self._changed_s = self._monotonic_s()

    def _take_turns(self, steps: Iterator[None]) -> None:
        """Rest after each step four times as long as it took of the processor.

        The engine's thread lets go of the interpreter with each operation of a decode step, and may wait for
        it each time. So what is taken here is lost there, and what was saved up must not be taken at once.
        """
        began_s = time.thread_time()
        for _ in steps:
            if not self._closing.is_set():
                time.sleep(_PAUSE_AFTER_A_STEP * (time.thread_time() - began_s))
            began_s = time.thread_time()

    @contextmanager
    def _taking(self) -> Iterator[None]:
        """Count the processor time that is taken inside."""
        before_s = self._taken_s()
        yield
        self._allowance.take(self._taken_s() - before_s, self._monotonic_s())
