"""How fast a tier's loads come: latency and rate of its line, learnt from every block that arrives.

::

    asked      |A B C                    |D
    arrived         |A   |B   |C              |D
                latency   gap  gap       latency
                + A/rate                 + D/rate

A block asked for at least a latency before the one before it arrived came right behind that one, so
the gap between them tells the rate; one asked for when nothing was on its way tells the latency.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from policies.cost_model import LoadCost

_HALF_LIFE_S = 60.0
_NEW_SHARE = 0.3
_MOST_RATIO = 3.0
_LEAST_LATENCY_S = 1e-4
_STALE_AFTER_S = 2.0
# Several readers' blocks arrive in clumps: fewer gaps than this may all lie within one.
_LEAST_GAPS = 4
_GAPS_OF_A_SAMPLE = 8
_CLUMP_SHARE = 0.1
_CLUMP_S = 1e-4
_OVERDUE = 2
_PATIENCE_BLOCKS = 3
_MOST_LEFT_BEHIND_S = 10.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """One block that has arrived, raw bytes; seconds of a monotonic clock."""

    asked_s: float
    arrived_s: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class LineState:
    """What is kept of a line between runs."""

    latency_s: float
    bytes_per_s: float


class Smoothed:
    """A positive quantity that is measured again and again: recent samples count, an outlier little.

    A sample more than ``_MOST_RATIO`` off moves it by that ratio alone; when the next one is off the
    same way, things have changed and it is believed. What is old is given up faster.
    """

    def __init__(self, value: float | None = None) -> None:
        self.value = value
        self._at_s = -math.inf
        self._suspect = 0

    def add(self, sample: float, now_s: float, *, is_proof: bool = False) -> None:
        """Take a sample in; one that proves what it says is believed at once, however far off."""
        if self.value is None:
            self.value, self._at_s = sample, now_s
            return
        off = math.log(sample / self.value)
        direction = 0 if abs(off) <= math.log(_MOST_RATIO) else round(math.copysign(1, off))
        age_s = max(0.0, now_s - self._at_s)
        share = 1 - (1 - _NEW_SHARE) * math.exp(-age_s * math.log(2) / _HALF_LIFE_S)
        if direction and (is_proof or direction == self._suspect):
            share = 1.0
        elif direction:
            off = direction * math.log(_MOST_RATIO)
        self._suspect, self._at_s = direction, now_s
        self.value *= math.exp(share * off)


class Line:
    """Latency and rate of one tier, and what is on its way. Not thread-safe; time is handed in."""

    def __init__(self, known: LineState | None = None) -> None:
        self._latency = Smoothed(known.latency_s if known else None)
        self._rate = Smoothed(known.bytes_per_s if known else None)
        self._lone: Arrival | None = None
        self._last_arrival_s = -math.inf
        self._burst_began_s = -math.inf
        self._burst_bytes = 0
        self._num_gaps = 0
        self._asked: dict[object, tuple[float, int]] = {}
        self._busy_until_s = -math.inf
        self._given_up_s = -math.inf
        self.bytes_on_way = 0
        """Bytes asked for that have neither arrived nor been given up."""
        self._learnt_s = -math.inf

    @property
    def state(self) -> LineState | None:
        """What has been learnt; ``None`` before the first arrival.

        Until several blocks have come in a row, half of a lone one's time is taken for latency.
        """
        if self._rate.value is not None:
            return LineState(self._latency.value or _LEAST_LATENCY_S, self._rate.value)
        if self._lone is None:
            return None
        half_s = _took_s(self._lone) / 2
        return LineState(half_s, self._lone.nbytes / half_s)

    def asked(self, token: object, nbytes: int, now_s: float) -> None:
        """Note that a load, named by ``token``, was asked for."""
        self._asked[token] = (now_s, nbytes)
        self.bytes_on_way += nbytes

    def ended(self, token: object) -> None:
        """Note that a load has reported."""
        _, nbytes = self._asked.pop(token, (0.0, 0))
        self.bytes_on_way -= nbytes

    def given_up(self, token: object, now_s: float) -> None:
        """Note that a load was given up. One that is overdue tells that the line is slower than thought."""
        asked_s, nbytes = self._asked.pop(token, (now_s, 0))
        self.bytes_on_way -= nbytes
        state = self.state
        if not nbytes or state is None:
            return
        # What was begun comes all the same, and others wait behind it.
        busy_until_s = max(self._busy_until_s, now_s) + nbytes / state.bytes_per_s
        self._busy_until_s = min(busy_until_s, now_s + _MOST_LEFT_BEHIND_S)
        self._given_up_s = now_s
        waited_s = now_s - max(asked_s + state.latency_s, self._last_arrival_s)
        if waited_s > state.latency_s + _OVERDUE * nbytes / state.bytes_per_s:
            self._rate.add(nbytes / waited_s, now_s)
            self._learnt_s = now_s

    def learn(self, arrivals: Iterable[Arrival]) -> None:
        """Take in blocks that have arrived, in any order."""
        for arrival in sorted(arrivals, key=lambda arrival: arrival.arrived_s):
            self._learn(arrival)

    def cost(self, now_s: float) -> LoadCost | None:
        """Return what the next loads cost; ``None`` before anything is known."""
        state = self.state
        if state is None:
            return None
        busy_s = max(0.0, self._busy_until_s - now_s)
        if not self._asked:
            return LoadCost(state.latency_s, state.bytes_per_s, busy_s)
        first_asked_s, first_bytes = next(iter(self._asked.values()))
        last_asked_s, _ = next(reversed(self._asked.values()))
        due_s = first_asked_s + state.latency_s
        rate = min(state.bytes_per_s, self._most_bytes_per_s(due_s, first_bytes, now_s))
        queue_s = max(busy_s, due_s - now_s) + self.bytes_on_way / rate
        return LoadCost(max(0.0, last_asked_s + state.latency_s - now_s), rate, queue_s)

    def _most_bytes_per_s(self, due_s: float, next_bytes: int, now_s: float) -> float:
        """Return the highest rate that what has come lately allows; ``due_s``: the next block's latency ends.

        Since the burst began the line was busy, and has not brought the next block yet. That blocks come
        in clumps is allowed for.
        """
        waited_s = now_s - max(due_s, self._last_arrival_s)
        busy_s = now_s - self._burst_began_s
        is_in_burst = due_s <= self._last_arrival_s and self._num_gaps > 0
        bounds = [_PATIENCE_BLOCKS * next_bytes / waited_s] if waited_s > 0 else []
        if is_in_burst and busy_s > 0:
            bounds.append((self._burst_bytes + _PATIENCE_BLOCKS * next_bytes) / busy_s)
        return min(bounds, default=math.inf)

    def is_stale(self, now_s: float) -> bool:
        """Say whether nothing was learnt for so long that the tier deserves a probe."""
        return not self._asked and now_s - self._learnt_s > _STALE_AFTER_S

    def _learn(self, arrival: Arrival) -> None:
        state = self.state
        latency_s = state.latency_s if state and self._rate.value else 0.0
        if arrival.asked_s + latency_s <= self._last_arrival_s:
            if self._is_of_first_clump(arrival):
                return
            self._burst_bytes += arrival.nbytes
            self._num_gaps += 1
            if self._num_gaps >= _GAPS_OF_A_SAMPLE:
                self._take_rate(arrival.arrived_s)
        else:
            if self._num_gaps >= _LEAST_GAPS:
                self._take_rate(self._last_arrival_s)
            if arrival.asked_s >= self._last_arrival_s:
                self._take_latency(arrival)
            self._start_burst(arrival.arrived_s)
        if arrival.asked_s > self._given_up_s:
            self._busy_until_s = min(self._busy_until_s, arrival.arrived_s)
        self._last_arrival_s = max(self._last_arrival_s, arrival.arrived_s)
        self._learnt_s = max(self._learnt_s, arrival.arrived_s)

    def _is_of_first_clump(self, arrival: Arrival) -> bool:
        """Say whether a block came at once with the one that began the burst, so that no gap is between."""
        rate, since_s = self._rate.value, arrival.arrived_s - self._burst_began_s
        return since_s <= (min(_CLUMP_S, _CLUMP_SHARE * arrival.nbytes / rate) if rate else 0.0)

    def _take_rate(self, now_s: float) -> None:
        is_first = self._rate.value is None
        busy_s = now_s - self._burst_began_s
        if busy_s > 0:
            self._rate.add(self._burst_bytes / busy_s, now_s)
        if is_first and self._lone is not None:
            self._take_latency(self._lone)
        self._start_burst(now_s)

    def _take_latency(self, arrival: Arrival) -> None:
        if self._rate.value is None:
            self._lone = arrival
            return
        took_s = _took_s(arrival)
        rest_s = took_s - arrival.nbytes / self._rate.value
        if rest_s < 0:  # so fast is the line at the least
            self._rate.add(arrival.nbytes / took_s, arrival.arrived_s, is_proof=True)
        else:
            latency_s = self._latency.value
            is_sooner = latency_s is not None and took_s < latency_s
            self._latency.add(max(_LEAST_LATENCY_S, rest_s), arrival.arrived_s, is_proof=is_sooner)

    def _start_burst(self, now_s: float) -> None:
        self._burst_began_s, self._burst_bytes, self._num_gaps = now_s, 0, 0


def _took_s(arrival: Arrival) -> float:
    return max(2 * _LEAST_LATENCY_S, arrival.arrived_s - arrival.asked_s)
