"""How the server did over the last hour and the last day: samples of what it counts, in bounded memory."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from math import isnan, nan
from threading import Lock

_MOST_NAMES = 256

Counts = Mapping[str, float]
Times = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Reading:
    """What is counted and what there is at one moment.

    ``counts`` and ``times`` (counts by bucket) have grown since the start, ``levels`` go up and down. Names
    are made up by whoever reads.
    """

    counts: Counts = field(default_factory=dict)
    levels: Counts = field(default_factory=dict)
    times: Times = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """So many samples, one for each ``interval_s``."""

    name: str
    interval_s: int
    num_samples: int


SPANS = (Span("hour", 5, 720), Span("day", 120, 720))


@dataclass(frozen=True, slots=True)
class Sample:
    """What was counted in the interval that ends at ``at_s`` (epoch), and the levels at its end."""

    at_s: int
    counts: Counts
    levels: Counts
    times: Times


@dataclass(slots=True)
class _Packed:
    """A sample in few bytes: numbers by the place of their names, times only where there are any."""

    at_s: int
    counts: array[float]
    levels: array[float]
    times: dict[str, array[int]]


class _Names:
    """The places of names, in the order in which they came; those beyond the bound have none."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def pack(self, numbers: Counts) -> array[float]:
        for name in numbers:
            if name not in self._places and len(self._places) < _MOST_NAMES:
                self._places[name] = len(self._places)
        return array("d", (numbers.get(name, nan) for name in self._places))

    def unpack(self, packed: array[float]) -> dict[str, float]:
        return {name: number for name, number in zip(self._places, packed, strict=False) if not isnan(number)}


class History:
    """Samples of the last hour and the last day. Thread-safe.

    Each reading adds to the interval of every span in which it was made, by the wall clock; intervals in
    which nothing was read have no sample. It keeps at most 256 names: a few megabytes.
    """

    def __init__(self, spans: Sequence[Span] = SPANS) -> None:
        self._spans = {span.name: span for span in spans}
        self._samples: dict[str, deque[_Packed]] = {
            span.name: deque(maxlen=span.num_samples) for span in spans
        }
        self._count_names, self._level_names = _Names(), _Names()
        self._before: Reading | None = None
        self._lock = Lock()

    def add(self, reading: Reading, now_ms: int) -> None:
        """Take note of a reading; the first one is only what later ones are compared with."""
        with self._lock:
            before, self._before = self._before, reading
            if before is None:
                return
            counts = {name: number - before.counts.get(name, 0) for name, number in reading.counts.items()}
            grown = Reading(counts, reading.levels, _sum_each(reading.times, before.times, -1))
            for span in self._spans.values():
                self._add_to(span, grown, now_ms)

    def samples(self, span: str, after_s: float = 0.0) -> list[Sample]:
        """Return the samples of a span that end after ``after_s`` (epoch), the oldest first.

        The last one's interval may go on yet.
        """
        with self._lock:
            return [self._unpacked(packed) for packed in self._samples[span] if packed.at_s > after_s]

    def _add_to(self, span: Span, new: Reading, now_ms: int) -> None:
        samples = self._samples[span.name]
        at_s = (now_ms // (span.interval_s * 1000) + 1) * span.interval_s
        counts, times = new.counts, new.times
        if samples and samples[-1].at_s >= at_s:  # or the clock was put back
            last = self._unpacked(samples.pop())
            at_s, counts, times = last.at_s, _sum(last.counts, counts), _sum_each(last.times, times)
        samples.append(
            _Packed(
                at_s,
                self._count_names.pack(counts),
                self._level_names.pack(new.levels),
                {name: array("I", numbers) for name, numbers in times.items() if any(numbers)},
            )
        )

    def _unpacked(self, packed: _Packed) -> Sample:
        counts, levels = self._count_names.unpack(packed.counts), self._level_names.unpack(packed.levels)
        return Sample(packed.at_s, counts, levels, packed.times)


def _sum(one: Counts, other: Counts) -> Counts:
    return {name: one.get(name, 0) + other.get(name, 0) for name in (*one, *other)}


def _sum_each(one: Times, other: Times, sign: int = 1) -> Times:
    """Return the sum, or the difference, of two sets of times."""
    pairs = {
        name: zip_longest(one.get(name, ()), other.get(name, ()), fillvalue=0) for name in (*one, *other)
    }
    return {name: [first + sign * second for first, second in pair] for name, pair in pairs.items()}
