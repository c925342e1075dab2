"""The suite of every ``Backend`` that is ``Streaming`` as well, subclassed like ``BackendConformance``."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

from kvstore.conformance.backend import BackendConformance
from kvstore.conformance.frames import get, make_key, make_payload, put, verified, want_of
from kvstore.seams import Backend, Streaming


class StreamingBackend(Backend, Streaming, Protocol):
    """What the suite is about."""


class StreamingConformance(BackendConformance):
    """What ``kvstore.seams.Streaming`` promises, and all of ``BackendConformance``, as tests."""

    def test_it_says_that_it_streams(self, backend: StreamingBackend) -> None:
        assert isinstance(backend, Streaming)

    def test_an_exchange_yields_in_order_what_single_reads_would(self, backend: StreamingBackend) -> None:
        for name, nbytes in (("a", self.block_bytes), ("b", 700), ("c", 800)):
            put(backend, make_key(name), make_payload(name, nbytes))
        wants = [want_of(name, nbytes) for name, nbytes in (("b", 9000), ("absent", 100), ("c", 799))]
        wants += [want_of(name, self.block_bytes) for name in "abca"]
        lengths = []
        for want, length in zip(wants, backend.get_each(wants), strict=True):
            lengths.append(length)
            if length is not None:
                verified(want.key, bytes(want.header), want.payload[:length])
        assert lengths == [700, None, None, self.block_bytes, 700, 800, self.block_bytes]

    def test_an_exchange_that_is_ended_early_disturbs_nothing(self, backend: StreamingBackend) -> None:
        for name in range(4):
            put(backend, make_key(name), make_payload(name, self.block_bytes))
        for _ in range(3):
            lengths = backend.get_each([want_of(name, self.block_bytes) for name in range(4)])
            assert next(lengths) == self.block_bytes
            if isinstance(lengths, Generator):
                lengths.close()
        for name in range(4):
            assert get(backend, make_key(name), self.block_bytes) == make_payload(name, self.block_bytes)

    def test_an_exchange_for_nothing_yields_nothing(self, backend: StreamingBackend) -> None:
        assert list(backend.get_each([])) == []
