"""The suite of every ``Backend`` that is ``Amending`` as well, subclassed like ``BackendConformance``."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from kvstore.conformance.backend import BackendConformance
from kvstore.conformance.frames import get, make_key, make_payload, put, run_together
from kvstore.frame import HEADER_BYTES, Expiry, Header
from kvstore.seams import Amending, Backend

LATER = Expiry(soft_ms=4_000_000_000_000, hard_ms=4_100_000_000_000)


class AmendingBackend(Backend, Amending, Protocol):
    """What the suite is about."""


def header_of(backend: Backend, key: bytes, nbytes: int) -> Header:
    """Return the header that a read brings."""
    header = bytearray(HEADER_BYTES)
    assert backend.get_into(key, memoryview(header), memoryview(bytearray(nbytes))) is not None
    return Header.unpack(bytes(header))


def ending(soft_ms: int, header: Header) -> Header:
    """Return the header with another soft end."""
    return replace(header, expiry=Expiry(soft_ms))


class AmendingConformance(BackendConformance):
    """What ``kvstore.seams.Amending`` promises, and all of ``BackendConformance``, as tests."""

    def test_it_says_that_it_amends(self, backend: AmendingBackend) -> None:
        assert isinstance(backend, Amending)

    def test_a_header_is_replaced_and_the_payload_stays(self, backend: AmendingBackend) -> None:
        key, payload = make_key("a"), make_payload("a", self.block_bytes)
        before = put(backend, key, payload)
        occupied = backend.stats().occupied_bytes
        after = replace(before, expiry=LATER, pinned_ms=4_000_000_000_001)
        seen: list[Header] = []

        def change(header: Header) -> Header:
            seen.append(header)
            return after

        assert backend.amend(key, change)
        assert seen[-1] == before
        assert header_of(backend, key, self.block_bytes) == after
        assert get(backend, key, self.block_bytes) == payload
        assert backend.stats().occupied_bytes == occupied

    def test_a_change_to_the_same_is_none(self, backend: AmendingBackend) -> None:
        before = put(backend, make_key("a"), make_payload("a", 100))
        assert backend.amend(make_key("a"), lambda header: header)
        assert header_of(backend, make_key("a"), 100) == before

    def test_what_is_not_there_is_not_amended(self, backend: AmendingBackend) -> None:
        assert not backend.amend(make_key("absent"), lambda header: replace(header, expiry=LATER))
        put(backend, make_key("a"), make_payload("a", 100))
        backend.delete(make_key("a"))
        assert not backend.amend(make_key("a"), lambda header: replace(header, expiry=LATER))
        assert get(backend, make_key("a"), 100) is None

    def test_a_put_begins_with_its_own_header(self, backend: AmendingBackend) -> None:
        put(backend, make_key("a"), make_payload("a", 5000))
        assert backend.amend(make_key("a"), lambda header: replace(header, expiry=LATER))
        fresh = put(backend, make_key("a"), make_payload("b", 700))
        assert header_of(backend, make_key("a"), 700) == fresh

    def test_an_amended_header_outlives_the_process_where_blocks_do(
        self, backend: AmendingBackend, tmp_path: Path
    ) -> None:
        payload = make_payload("a", self.block_bytes)
        after = replace(put(backend, make_key("a"), payload), expiry=LATER)
        assert backend.amend(make_key("a"), lambda header: replace(header, expiry=LATER))
        with closing(self.reopened(backend, tmp_path)) as again:
            assert list(again.recover()) == [after]
            assert header_of(again, make_key("a"), self.block_bytes) == after

    def test_readers_see_whole_headers_whoever_amends(self, backend: AmendingBackend) -> None:
        key, payload = make_key("contended"), make_payload("x", self.block_bytes)
        put(backend, key, payload)

        def amend(first_ms: int) -> None:
            for number in range(50):
                backend.amend(key, partial(ending, LATER.soft_ms + first_ms + number))

        def read() -> None:
            for _ in range(100):
                assert get(backend, key, self.block_bytes) == payload  # verifies header and payload

        run_together(lambda: amend(0), lambda: amend(1000), read, read)

    def test_amending_and_putting_do_not_mix(self, backend: AmendingBackend) -> None:
        key = make_key("contended")

        def write() -> None:
            for step in range(30):
                put(backend, key, make_payload(step, self.block_bytes - step % 2))
                if step % 5 == 4:
                    backend.delete(key)

        def amend() -> None:
            for _ in range(60):
                backend.amend(key, lambda header: replace(header, expiry=LATER))

        def read() -> None:
            for _ in range(60):
                get(backend, key, self.block_bytes)  # verifies each frame that it gets

        run_together(write, amend, read)
        put(backend, key, make_payload("last", self.block_bytes))
        assert get(backend, key, self.block_bytes) == make_payload("last", self.block_bytes)
