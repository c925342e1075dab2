"""The suite every ``Backend`` passes.

A plugin's tests subclass it and say how to make one::

    from kvstore.conformance.backend import BackendConformance

    class TestMyBackend(BackendConformance):
        survives = True

        def make_backend(self, tmp_path):
            return MyBackend(tmp_path / "blocks")

It needs pytest, which ``kvstore`` itself does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import ClassVar

import pytest

from kvstore.conformance.frames import (
    NAMESPACE,
    SIZES,
    get,
    make_header,
    make_key,
    make_payload,
    put,
    run_together,
)
from kvstore.frame import HEADER_BYTES
from kvstore.seams import Backend

__all__ = ["BackendConformance", "get", "make_header", "make_key", "make_payload", "put"]


class BackendConformance:
    """What ``kvstore.seams.Backend`` promises, as tests.

    Override ``make_backend``, and where it applies:

    - ``survives``: whether blocks outlive ``close`` and are there after ``make_backend`` again;
    - ``break_medium``: to show that a put which fails half way leaves nothing.
    """

    survives: ClassVar[bool] = False
    block_bytes: ClassVar[int] = 65536

    def make_backend(self, tmp_path: Path) -> Backend:
        """Return a backend with room for 64 blocks of 70,000 bytes; the same medium for the same path."""
        raise NotImplementedError

    def break_medium(self, backend: Backend) -> AbstractContextManager[object] | None:  # noqa: ARG002  to override
        """Return a context in which every put fails half way, or ``None`` if that cannot be arranged."""
        return None

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[Backend]:
        """One open backend, closed after the test."""
        backend = self.make_backend(tmp_path)
        yield backend
        backend.close()

    def reopened(self, backend: Backend, tmp_path: Path) -> Backend:
        """Close ``backend`` and open its medium again; skips the test if blocks do not survive that."""
        if not self.survives:
            pytest.skip("this medium does not outlive its process")
        backend.close()
        return self.make_backend(tmp_path)

    def test_an_absent_key_is_a_miss(self, backend: Backend) -> None:
        assert get(backend, make_key("absent"), self.block_bytes) is None

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_what_was_put_is_got(self, backend: Backend, nbytes: int) -> None:
        payload = make_payload("a", nbytes)
        put(backend, make_key("a"), payload)
        assert get(backend, make_key("a"), nbytes) == payload

    def test_a_buffer_that_is_too_short_is_a_miss(self, backend: Backend) -> None:
        put(backend, make_key("a"), make_payload("a", 5000))
        assert [get(backend, make_key("a"), nbytes) for nbytes in (1, 4096, 4999)] == [None] * 3
        assert get(backend, make_key("a"), 5000) == make_payload("a", 5000)

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_of_a_buffer_that_is_longer_the_front_is_filled(self, backend: Backend, nbytes: int) -> None:
        put(backend, make_key("a"), make_payload("a", nbytes))
        for extra in (1, 4095, 4096, 70_000):
            assert get(backend, make_key("a"), nbytes + extra) == make_payload("a", nbytes)

    def test_a_put_replaces_also_with_another_length(self, backend: Backend) -> None:
        key = make_key("a")
        put(backend, key, make_payload("old", 9000))
        put(backend, key, make_payload("new", 9000))
        assert get(backend, key, 9000) == make_payload("new", 9000)
        put(backend, key, make_payload("short", 700))
        assert get(backend, key, 9000) == make_payload("short", 700)
        put(backend, key, make_payload("long", 9001))
        assert get(backend, key, 9000) is None
        assert get(backend, key, 9001) == make_payload("long", 9001)

    def test_a_deleted_key_is_a_miss_and_can_be_put_again(self, backend: Backend) -> None:
        key = make_key("a")
        put(backend, key, make_payload("a", 5000))
        put(backend, make_key("b"), make_payload("b", 5000))
        backend.delete(key)
        assert get(backend, key, 5000) is None
        assert get(backend, make_key("b"), 5000) == make_payload("b", 5000)
        put(backend, key, make_payload("again", 5000))
        assert get(backend, key, 5000) == make_payload("again", 5000)

    def test_deleting_an_absent_key_is_no_error(self, backend: Backend) -> None:
        backend.delete(make_key("absent"))
        put(backend, make_key("a"), make_payload("a", 100))
        backend.delete(make_key("a"))
        backend.delete(make_key("a"))

    def test_buffers_are_not_kept(self, backend: Backend) -> None:
        key, payload = make_key("a"), make_payload("a", self.block_bytes)
        header_buffer = bytearray(make_header(key, payload).pack())
        payload_buffer = bytearray(payload)
        header_view, payload_view = memoryview(header_buffer), memoryview(payload_buffer)
        backend.put(key, header_view, payload_view)
        header_view[:] = bytes(HEADER_BYTES)
        payload_view[:] = bytes(self.block_bytes)
        assert get(backend, key, self.block_bytes) == payload
        header_view.release()
        payload_view.release()
        header_buffer.clear()  # raises BufferError if anybody still holds a view
        payload_buffer.clear()

    def test_what_was_got_is_a_copy(self, backend: Backend) -> None:
        key, payload = make_key("a"), make_payload("a", self.block_bytes)
        put(backend, key, payload)
        out = bytearray(self.block_bytes)
        assert backend.get_into(key, memoryview(bytearray(HEADER_BYTES)), memoryview(out)) == len(out)
        out[:] = bytes(self.block_bytes)
        assert get(backend, key, self.block_bytes) == payload

    def test_a_view_at_any_offset_will_do(self, backend: Backend) -> None:
        source = memoryview(b"xyz" + make_payload("a", self.block_bytes))[3:]
        key, header = make_key("a"), make_header(make_key("a"), bytes(source))
        backend.put(key, memoryview(header.pack()), source)
        target = memoryview(bytearray(self.block_bytes + 5))[5:]
        assert backend.get_into(key, memoryview(bytearray(HEADER_BYTES)), target) == len(target)
        assert target == source

    def test_the_footprint_is_honest(self, backend: Backend) -> None:
        before = backend.stats().occupied_bytes
        for name in range(8):
            put(backend, make_key(name), make_payload(name, self.block_bytes))
        occupied = backend.stats().occupied_bytes - before
        assert 8 * self.block_bytes <= occupied <= 8 * backend.footprint(self.block_bytes)
        put(backend, make_key(0), make_payload("another", self.block_bytes))
        assert backend.stats().occupied_bytes - before == occupied, "a replaced frame is counted twice"
        for name in range(8):
            backend.delete(make_key(name))
        assert backend.stats().occupied_bytes == before

    def test_a_put_that_fails_leaves_nothing(self, backend: Backend) -> None:
        broken = self.break_medium(backend)
        if broken is None:
            pytest.skip("this medium cannot be made to fail half way")
        before = backend.stats().occupied_bytes
        put(backend, make_key("old"), make_payload("old", self.block_bytes))
        with broken:
            for name in ("new", "old"):
                with pytest.raises(Exception):  # noqa: B017, PT011  # any exception is a fault
                    put(backend, make_key(name), make_payload("half", self.block_bytes))
        assert get(backend, make_key("new"), self.block_bytes) is None
        assert get(backend, make_key("old"), self.block_bytes) is None
        assert backend.stats().occupied_bytes == before
        put(backend, make_key("new"), make_payload("whole", self.block_bytes))
        assert get(backend, make_key("new"), self.block_bytes) == make_payload("whole", self.block_bytes)

    def test_a_put_without_a_payload_to_read_leaves_nothing(self, backend: Backend) -> None:
        gone = memoryview(bytearray(self.block_bytes))
        gone.release()
        key = make_key("a")
        with pytest.raises(Exception):  # noqa: B017, PT011  # any exception is a fault
            backend.put(key, memoryview(make_header(key, b"").pack()), gone)
        assert get(backend, key, self.block_bytes) is None

    def test_frames_of_one_key_are_never_mixed(self, backend: Backend) -> None:
        key = make_key("contended")

        def write(writer: int) -> None:
            for step in range(25):
                put(backend, key, make_payload((writer, step), self.block_bytes))

        def read() -> None:
            for _ in range(50):
                get(backend, key, self.block_bytes)  # verifies each frame that it gets

        def delete() -> None:
            for _ in range(25):
                backend.delete(key)

        run_together(lambda: write(1), lambda: write(2), read, read, delete)
        put(backend, key, make_payload("last", self.block_bytes))
        assert get(backend, key, self.block_bytes) == make_payload("last", self.block_bytes)

    def test_threads_with_their_own_keys_do_not_disturb_each_other(self, backend: Backend) -> None:
        def work(worker: int) -> None:
            for step in range(25):
                key, payload = make_key((worker, step % 5)), make_payload((worker, step), self.block_bytes)
                put(backend, key, payload)
                assert get(backend, key, self.block_bytes) == payload
                if step % 3 == 0:
                    backend.delete(key)
                    assert get(backend, key, self.block_bytes) is None

        run_together(*(lambda worker=worker: work(worker) for worker in range(4)))

    def test_nothing_is_recovered_from_a_new_medium(self, backend: Backend) -> None:
        assert list(backend.recover()) == []

    def test_recovery_names_what_is_there_least_recently_used_first(
        self, backend: Backend, tmp_path: Path
    ) -> None:
        parent = b""
        headers = {}
        for name in "abcd":
            headers[name] = put(backend, make_key(name), make_payload(name, self.block_bytes), parent)
            parent = make_key(name)
        backend.delete(make_key("b"))
        get(backend, make_key("a"), self.block_bytes)
        again = self.reopened(backend, tmp_path)
        with closing(again):
            assert list(again.recover()) == [headers["c"], headers["d"], headers["a"]]
            assert get(again, make_key("a"), self.block_bytes) == make_payload("a", self.block_bytes)
            assert get(again, make_key("b"), self.block_bytes) is None
            assert again.stats().occupied_bytes <= 3 * again.footprint(self.block_bytes)

    def test_a_manifest_is_taken_any_number_of_times(self, backend: Backend) -> None:
        for _ in range(2):
            backend.put_manifest(NAMESPACE, '{"label": "conformance"}\n')

    def test_manifests_outlive_the_process_where_blocks_do(self, backend: Backend, tmp_path: Path) -> None:
        assert list(backend.manifests()) == []
        backend.put_manifest(NAMESPACE, "old")
        backend.put_manifest(NAMESPACE, '{"label": "one"}\n')
        backend.put_manifest(NAMESPACE[::-1], '{"label": "two"}\n')
        expected = ['{"label": "one"}\n', '{"label": "two"}\n']
        if self.survives:
            assert sorted(backend.manifests()) == expected
        with closing(self.reopened(backend, tmp_path)) as again:
            assert sorted(again.manifests()) == expected

    def test_statistics_are_plain(self, backend: Backend) -> None:
        stats = backend.stats()
        assert stats.occupied_bytes >= 0
        assert all(isinstance(fact, str) for pair in stats.facts.items() for fact in pair)

    def test_closing_twice_is_no_error(self, backend: Backend) -> None:
        put(backend, make_key("a"), make_payload("a", self.block_bytes))
        backend.close()
        backend.close()
