from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from backends.disk import DiskBackend
from backends.faulty import (
    Fault,
    Faulty,
    Operation,
    cut_short,
    damaged_put,
    fail,
    flip_byte,
    half_put,
    miss,
    stall,
    swap_with,
)
from backends.host import HostBackend
from backends.throttle import Throttled
from kvstore.arena import Arena
from kvstore.conformance.backend import BackendConformance
from kvstore.conformance.frames import get, make_key, make_payload, put, want_of
from kvstore.conformance.streaming import StreamingConformance
from kvstore.errors import BackendError
from kvstore.frame import HEADER_BYTES, Expiry
from kvstore.seams import Amending, Streaming

NBYTES = 100


class TestFaultyWithoutFaults(BackendConformance):
    def make_backend(self, tmp_path: Path) -> Faulty:  # noqa: ARG002
        return Faulty(HostBackend(Arena(64 << 20)))


def faulty(*script: Fault) -> Faulty:
    backend = Faulty(HostBackend(Arena(1 << 20)), script)
    for name in "ab":
        put(backend, make_key(name), make_payload(name, NBYTES))
    return backend


def read(backend: Faulty, name: str) -> bytes | None:
    payload = bytearray(NBYTES)
    length = backend.get_into(make_key(name), memoryview(bytearray(HEADER_BYTES)), memoryview(payload))
    return None if length is None else bytes(payload[:length])


def test_only_the_nth_call_fails() -> None:
    backend = faulty(Fault(Operation.GET, fail(BackendError("host", "get", "unplugged")), nth=2))
    assert read(backend, "a") == make_payload("a", NBYTES)
    with pytest.raises(BackendError, match="unplugged"):
        read(backend, "a")
    assert read(backend, "a") == make_payload("a", NBYTES)
    assert backend.num_calls == {Operation.PUT: 2, Operation.GET: 3}


def test_without_a_number_every_call_fails() -> None:
    backend = faulty(Fault(Operation.DELETE, fail(OSError("stuck"))))
    for _ in range(2):
        with pytest.raises(OSError, match="stuck"):
            backend.delete(make_key("a"))
    assert read(backend, "a") == make_payload("a", NBYTES)


def test_a_byte_is_flipped_on_its_way_out_only() -> None:
    backend = faulty(Fault(Operation.GET, flip_byte(7), nth=1))
    good = make_payload("a", NBYTES)
    assert read(backend, "a") == good[:7] + bytes([good[7] ^ 0xFF]) + good[8:]
    assert read(backend, "a") == good


def test_a_payload_is_cut_short() -> None:
    backend = faulty(Fault(Operation.GET, cut_short(30)))
    assert read(backend, "a") == make_payload("a", NBYTES)[:30] + bytes(70)


def test_values_are_swapped() -> None:
    backend = faulty(Fault(Operation.GET, swap_with(make_key("b")), nth=1))
    assert read(backend, "a") == make_payload("b", NBYTES)


def test_a_promised_block_is_refused() -> None:
    assert read(faulty(Fault(Operation.GET, miss)), "a") is None


def test_a_call_stalls_before_it_goes_on() -> None:
    waited = []
    backend = faulty(Fault(Operation.GET, stall(lambda: waited.append("a while"))))
    assert read(backend, "a") == make_payload("a", NBYTES)
    assert waited == ["a while"]


def test_half_a_put_is_left_behind_by_an_error() -> None:
    backend = faulty(Fault(Operation.PUT, half_put(BackendError("host", "put", "unplugged")), nth=3))
    with pytest.raises(BackendError, match="unplugged"):
        put(backend, make_key("c"), make_payload("c", NBYTES))
    assert read(backend, "c") == make_payload("c", NBYTES)[:50]


class TestFaultyStreamWithoutFaults(StreamingConformance):
    def make_backend(self, tmp_path: Path) -> Faulty:  # noqa: ARG002
        return Faulty(Throttled(HostBackend(Arena(64 << 20)), bytes_per_s=50e9))


def test_faults_strike_single_blocks_of_an_exchange() -> None:
    stream = Throttled(HostBackend(Arena(1 << 20)), bytes_per_s=50e9)
    script = [
        Fault(Operation.GET, flip_byte(7), nth=2),
        Fault(Operation.GET, swap_with(make_key("a")), nth=3),
        Fault(Operation.GET, fail(BackendError("host", "get", "unplugged")), nth=5),
    ]
    backend = Faulty(stream, script)
    assert isinstance(backend, Streaming)
    for name in "ab":
        put(backend, make_key(name), make_payload(name, NBYTES))
    wants = [want_of("b", NBYTES) for _ in range(6)]
    lengths = backend.get_each(wants)
    assert [next(lengths) for _ in range(4)] == [NBYTES] * 4
    good = make_payload("b", NBYTES)
    assert [want.payload == good for want in wants[:4]] == [True, False, False, True]
    assert wants[2].payload == make_payload("a", NBYTES)
    with pytest.raises(BackendError, match="unplugged"):
        next(lengths)
    assert backend.num_calls[Operation.GET] == 6


def test_a_backend_that_does_not_stream_does_not_begin_to() -> None:
    assert not isinstance(faulty(), Streaming)


def test_a_damaged_put_reports_success() -> None:
    backend = faulty(Fault(Operation.PUT, damaged_put(3), nth=3))
    put(backend, make_key("c"), make_payload("c", NBYTES))
    with pytest.raises(AssertionError, match="do not belong together"):
        get(backend, make_key("c"), NBYTES)


def test_an_amendment_is_passed_on_and_can_fail(tmp_path: Path) -> None:
    with closing(DiskBackend(tmp_path)) as disk:
        header = put(disk, make_key("a"), make_payload("a", NBYTES))
        backend = Faulty(disk, [Fault(Operation.AMEND, fail(OSError("unplugged")), nth=2)])
        assert isinstance(backend, Amending)
        assert backend.amend(make_key("a"), lambda header: replace(header, expiry=Expiry(7)))
        with pytest.raises(OSError, match="unplugged"):
            backend.amend(make_key("a"), lambda header: replace(header, expiry=Expiry(8)))
        assert list(disk.recover()) == [replace(header, expiry=Expiry(7))]
    assert not isinstance(faulty(), Amending), "memory has no headers"
