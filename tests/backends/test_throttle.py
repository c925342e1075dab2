from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from backends.disk import DiskBackend
from backends.host import HostBackend
from backends.throttle import Throttled
from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.conformance.frames import get, make_key, make_payload, put, want_of
from kvstore.conformance.streaming import StreamingConformance
from kvstore.errors import ConfigError
from kvstore.frame import HEADER_BYTES, Expiry, Header
from kvstore.seams import Amending, SharedMedium

BLOCK_BYTES = 1000 - HEADER_BYTES


class Timeline:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept_s: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(round(seconds, 6))
        self.now_s += seconds

    def clock(self) -> Clock:
        return Clock(monotonic_s=lambda: self.now_s)


def throttled(timeline: Timeline, latency_s: float = 0.0) -> tuple[Throttled, HostBackend]:
    host = HostBackend(Arena(1 << 20))
    return Throttled(host, 10_000, latency_s, timeline.clock(), timeline.sleep), host


class TestThrottled(StreamingConformance):
    def make_backend(self, tmp_path: Path) -> Throttled:  # noqa: ARG002
        return Throttled(HostBackend(Arena(64 << 20)), bytes_per_s=50e9)


def test_a_transfer_takes_its_bytes_over_the_rate_plus_the_latency() -> None:
    timeline = Timeline()
    backend, _ = throttled(timeline, latency_s=0.02)
    put(backend, make_key("a"), make_payload("a", BLOCK_BYTES))
    get(backend, make_key("a"), BLOCK_BYTES)
    assert timeline.slept_s == [0.12, 0.12]


def test_transfers_asked_for_together_share_the_line() -> None:
    timeline = Timeline()
    backend, host = throttled(timeline, latency_s=0.02)
    put(host, make_key("a"), make_payload("a", BLOCK_BYTES))
    frozen = timeline.now_s
    for _ in range(3):
        timeline.now_s = frozen
        get(backend, make_key("a"), BLOCK_BYTES)
    assert timeline.slept_s == [0.12, 0.22, 0.32]


def test_an_idle_line_saves_nothing_up() -> None:
    timeline = Timeline()
    backend, host = throttled(timeline)
    put(host, make_key("a"), make_payload("a", BLOCK_BYTES))
    for _ in range(2):
        timeline.now_s += 50
        get(backend, make_key("a"), BLOCK_BYTES)
    assert timeline.slept_s == [0.1, 0.1]


def test_a_miss_costs_the_latency_alone() -> None:
    timeline = Timeline()
    backend, _ = throttled(timeline, latency_s=0.02)
    assert get(backend, make_key("absent"), BLOCK_BYTES) is None
    assert timeline.slept_s == [0.02]


def test_an_exchange_pays_its_latency_once_and_takes_the_line_in_order() -> None:
    timeline = Timeline()
    backend, host = throttled(timeline, latency_s=0.5)
    for name in "abc":
        put(host, make_key(name), make_payload(name, BLOCK_BYTES))
    lengths = backend.get_each([want_of(name, BLOCK_BYTES) for name in ("a", "absent", "b", "c")])
    assert list(lengths) == [BLOCK_BYTES, None, BLOCK_BYTES, BLOCK_BYTES]
    assert timeline.slept_s == [0.6, 0.1, 0.1]


def test_two_exchanges_share_the_line_one_after_the_other() -> None:
    timeline = Timeline()
    backend, host = throttled(timeline)
    for name in "ab":
        put(host, make_key(name), make_payload(name, BLOCK_BYTES))
    first = backend.get_each([want_of(name, BLOCK_BYTES) for name in "ab"])
    second = backend.get_each([want_of(name, BLOCK_BYTES) for name in "ab"])
    next(first)
    timeline.now_s -= 0.1
    assert list(second) == [BLOCK_BYTES] * 2
    assert timeline.slept_s == [0.1, 0.3, 0.1]


def test_line_that_an_exchange_did_not_need_is_given_back() -> None:
    timeline = Timeline()
    backend, host = throttled(timeline)
    put(host, make_key("a"), make_payload("a", BLOCK_BYTES))
    assert list(backend.get_each([want_of("a", 10 * BLOCK_BYTES), want_of("absent", BLOCK_BYTES)]))
    get(backend, make_key("a"), BLOCK_BYTES)
    assert timeline.slept_s == [0.1, 0.1]


@pytest.mark.parametrize(("bytes_per_s", "latency_s"), [(0, 0), (-1, 0), (1, -1)])
def test_a_line_that_cannot_be_is_refused(bytes_per_s: float, latency_s: float) -> None:
    with pytest.raises(ConfigError):
        Throttled(HostBackend(Arena(0)), bytes_per_s, latency_s)


class SharedHost(HostBackend):
    """A medium that others write to as well."""

    def __init__(self, there: Sequence[Header | None]) -> None:
        super().__init__(Arena(1 << 20))
        self.there = there

    def resident(self, _keys: Sequence[bytes]) -> Sequence[Header | None]:
        return self.there


def test_a_shared_medium_is_asked_through_it_and_the_answer_takes_the_line() -> None:
    timeline = Timeline()
    header = Header(b"", make_key("a"), b"", 16, 0, 0, 0, Expiry(), 0)
    medium = SharedHost([header, None, header])
    backend = Throttled(medium, HEADER_BYTES * 10, 0.02, timeline.clock(), timeline.sleep)
    assert isinstance(backend, SharedMedium)
    assert backend.resident([make_key(name) for name in "abc"]) == medium.there
    assert timeline.slept_s == [0.22]
    assert not isinstance(throttled(timeline)[0], SharedMedium)


def test_an_amendment_takes_the_latency_and_a_header_on_the_line(tmp_path: Path) -> None:
    timeline = Timeline()
    with closing(DiskBackend(tmp_path)) as disk:
        backend = Throttled(disk, HEADER_BYTES / 0.1, 0.02, timeline.clock(), timeline.sleep)
        header = put(disk, make_key("a"), make_payload("a", BLOCK_BYTES))
        assert isinstance(backend, Amending)
        assert backend.amend(make_key("a"), lambda header: replace(header, expiry=Expiry(7)))
        assert timeline.slept_s == [pytest.approx(0.12)]
        assert list(disk.recover()) == [replace(header, expiry=Expiry(7))]
    assert not isinstance(throttled(timeline)[0], Amending), "memory has no headers"
