"""When blocks are used again, learnt from those that were and from those that still wait.

Pure: a block's past goes in, an index of what keeping it is worth comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf, log2, sqrt
from zlib import crc32

_SHORTEST_S = 1 / 16
_BUCKETS_PER_OCTAVE = 2
_NUM_BUCKETS = 52
_NUM_GAPS = 26
_MOST_LEVELS = 7
_MOST_SAMPLED = 8192
_LEAST_USES_BETWEEN_FITS = 1024
_USES_A_SAMPLED_BLOCK = 4
_FADE = 0.96
"""What was counted before weighs so much at the next fit: half after some 17 fits."""
_BELIEF = 8.0
"""As many requests as a class must have shown before it counts as much as what is known of its like."""

_EDGES_S = [0.0, *(_SHORTEST_S * 2 ** (n / _BUCKETS_PER_OCTAVE) for n in range(_NUM_BUCKETS))]
_WIDTHS_S = [end - start for start, end in pairwise(_EDGES_S)]


class Past:
    """How a block was used so far; kept for some time after it has left."""

    __slots__ = ("gap_s", "is_followed", "num_uses", "number", "used_s")

    def __init__(self, key: bytes, now_s: float) -> None:
        self.number = crc32(key)
        self.num_uses = 1
        self.used_s = now_s
        self.gap_s = 0.0  # between uses, the mean of logarithms; an earlier one weighs half as much
        self.is_followed = False

    def use(self, now_s: float) -> None:
        """Note a use."""
        gap_s = max(_SHORTEST_S, now_s - self.used_s)
        self.gap_s = gap_s if self.num_uses == 1 else sqrt(self.gap_s * gap_s)
        self.used_s = now_s
        self.num_uses += 1

    def kind(self) -> int:
        """Return the number of its class: by uses, the gaps between, and whether a block ever followed."""
        uses = self.num_uses
        if uses == 1:
            return int(self.is_followed)
        level = uses - 1 if uses <= 4 else min(_MOST_LEVELS, (uses - 1).bit_length() + 1)
        gap = self.gap_s / _SHORTEST_S
        octave = 0 if gap <= 1 else min(_NUM_GAPS - 1, int(log2(gap)))
        return 2 * (level * _NUM_GAPS + octave) + self.is_followed


class Hazards:
    """The index of each class of blocks at each age. Not thread-safe.

    Of a sample of blocks, chosen by key and bounded, it is counted at which age they were used again, were
    given up for lost, or still wait. That gives for each class and age the chance to be used next. A class
    of which little is known is taken to be like others with as many uses, and these like all; how much is
    known is counted in requests, because the blocks of one share their fate. The index of
    a block is Gittins's: the best ratio, over all times that one could keep it from now on, of the chance
    that it is used within that time to how long it would be kept.
    """

    def __init__(self) -> None:
        self._sample: dict[int, Past] = {}
        self._share = 1 << 32
        self._used: dict[int, list[float]] = {}
        self._lost: dict[int, list[float]] = {}
        self._indices: dict[int, list[float]] = {}
        self._overall: list[float] = []
        self._counts: dict[int, tuple[list[float], list[float]]] = {}
        self._known: dict[int, list[float]] = {}
        self._belief = _BELIEF
        self._num_uses = 0  # since the last fit, and how many it takes to the next
        self._num_to_fit = _LEAST_USES_BETWEEN_FITS
        self._num_seen = 0.0  # uses of blocks in the sample, and the moments when there were any
        self._num_moments = 0.0
        self._seen_s = -inf

    def begin(self, past: Past) -> None:
        """Take in a block that is used for the first time."""
        self._num_uses += 1
        if past.number < self._share and past.number not in self._sample:
            self._sample[past.number] = past
            self._see(past.used_s)
            if len(self._sample) > _MOST_SAMPLED:
                self._halve_sample()

    def use(self, past: Past, now_s: float) -> None:
        """Take in that a block is used again, and note it in its past."""
        self._num_uses += 1
        if past.number < self._share and self._sample.get(past.number) is past:
            _count(self._used, past.kind(), now_s - past.used_s)
            self._see(now_s)
        past.use(now_s)

    def lose(self, past: Past, now_s: float) -> None:
        """Take in that nothing more will be heard of a block."""
        if past.number < self._share and self._sample.get(past.number) is past:
            del self._sample[past.number]
            _count(self._lost, past.kind(), now_s - past.used_s)

    def index(self, kind: int, age_s: float) -> float:
        """Return what it is worth to keep a block of a class, unused for ``age_s``: uses a second."""
        indices = self._indices.get(kind) or self._fit(kind)
        if not indices:
            return 1 / (age_s + _SHORTEST_S)
        bucket = _bucket(age_s)
        here = indices[bucket]
        if bucket == _NUM_BUCKETS - 1:
            return here
        return here + (indices[bucket + 1] - here) * (age_s - _EDGES_S[bucket]) / _WIDTHS_S[bucket]

    def refit(self, now_s: float) -> bool:
        """Learn anew from what was counted, if enough has been since the last time; says whether it did."""
        if self._num_uses < self._num_to_fit:
            return False
        self._num_uses = 0
        self._num_to_fit = max(_LEAST_USES_BETWEEN_FITS, _USES_A_SAMPLED_BLOCK * len(self._sample))
        self._weigh(_FADE)
        unused = self._still_unused(now_s)
        nothing = [0.0] * _NUM_BUCKETS
        self._counts = {}
        groups: dict[int, list[int]] = {}
        for kind in sorted(self._used.keys() | unused.keys()):
            groups.setdefault(_group(kind), []).append(kind)
            self._counts[kind] = list(self._used.get(kind, nothing)), unused.get(kind, nothing)
        of_group = {
            group: _total([self._counts[kind] for kind in members]) for group, members in groups.items()
        }
        overall = _chances(*_total(list(of_group.values())), nothing, belief=1.0)
        self._belief = _BELIEF * self._num_seen / self._num_moments if self._num_moments else _BELIEF
        self._known = {group: _chances(*counts, overall, self._belief) for group, counts in of_group.items()}
        self._overall = _gittins(overall)
        self._indices = {}
        return True

    def _fit(self, kind: int) -> list[float]:
        """Return a class's indices by what was counted until the last fit, computed when first asked for."""
        counts = self._counts.get(kind)
        if counts is None:
            return self._overall
        indices = _gittins(_chances(*counts, self._known[_group(kind)], self._belief))
        self._indices[kind] = indices
        return indices

    def _see(self, now_s: float) -> None:
        """Note a use of a block in the sample."""
        self._num_seen += 1
        if now_s > self._seen_s:
            self._seen_s = now_s
            self._num_moments += 1

    def _halve_sample(self) -> None:
        """Leave half of the sample, and half the weight to what all of it has shown."""
        self._share //= 2
        self._sample = {n: kept for n, kept in self._sample.items() if n < self._share}
        self._num_seen *= 0.5
        self._weigh(0.5)

    def _weigh(self, factor: float) -> None:
        """Let all that was counted so far weigh ``factor`` times as much."""
        for counts in (*self._used.values(), *self._lost.values()):
            counts[:] = [count * factor for count in counts]

    def _still_unused(self, now_s: float) -> dict[int, list[float]]:
        """Return how many of each class were lost or still wait, by their age then or now."""
        unused = {kind: list(counts) for kind, counts in self._lost.items()}
        for past in self._sample.values():
            _count(unused, past.kind(), now_s - past.used_s)
        return unused


def _bucket(age_s: float) -> int:
    if age_s <= _SHORTEST_S:
        return 0
    return min(_NUM_BUCKETS - 1, 1 + int(_BUCKETS_PER_OCTAVE * log2(age_s / _SHORTEST_S)))


def _group(kind: int) -> int:
    """Return the classes' group: those with as many uses, apart by whether a block followed."""
    return 2 * (kind // (2 * _NUM_GAPS)) + kind % 2


def _count(counts: dict[int, list[float]], kind: int, age_s: float) -> None:
    if kind not in counts:
        counts[kind] = [0.0] * _NUM_BUCKETS
    counts[kind][_bucket(age_s)] += 1


def _total(counts: Sequence[tuple[list[float], list[float]]]) -> tuple[list[float], list[float]]:
    used = [sum(column) for column in zip(*(each[0] for each in counts), strict=True)]
    return used, [sum(column) for column in zip(*(each[1] for each in counts), strict=True)]


def _chances(used: list[float], unused: list[float], known: list[float], belief: float) -> list[float]:
    """Return for each age the chance to be used before the next, among those that reach it."""
    chances = [0.0] * _NUM_BUCKETS
    num_later = 0.0
    for bucket in range(_NUM_BUCKETS - 1, -1, -1):
        num_reaching = num_later + used[bucket] + 0.5 * unused[bucket]
        num_later += used[bucket] + unused[bucket]
        chances[bucket] = (used[bucket] + belief * known[bucket]) / (num_reaching + belief)
    return chances


def _gittins(chances: list[float]) -> list[float]:
    """Return the best ratio of uses to seconds from each age on: the slopes of a concave hull."""
    uses, seconds, reaching = [0.0], [0.0], 1.0
    for chance, width_s in zip(chances, _WIDTHS_S, strict=True):
        uses.append(uses[-1] + reaching * chance)
        seconds.append(seconds[-1] + reaching * width_s * (1 - chance / 2))
        reaching *= 1 - chance
    indices = [0.0] * _NUM_BUCKETS
    hull = [_NUM_BUCKETS]
    for start in range(_NUM_BUCKETS - 1, -1, -1):
        best = _slope(uses, seconds, start, hull[-1])
        while len(hull) > 1 and (further := _slope(uses, seconds, start, hull[-2])) >= best:
            hull.pop()
            best = further
        indices[start] = best
        hull.append(start)
    return indices


def _slope(uses: list[float], seconds: list[float], start: int, end: int) -> float:
    held_s = seconds[end] - seconds[start]
    return (uses[end] - uses[start]) / held_s if held_s > 0 else 0.0
