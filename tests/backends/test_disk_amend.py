"""Headers rewritten in place, in the file and in the journal, whenever the process ends."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from backends.disk import DiskBackend
from backends.disk_frames import FrameFiles
from backends.disk_journal import replay
from kvstore.conformance.amending import LATER
from kvstore.conformance.frames import get, make_key, make_payload, put
from kvstore.errors import BackendError
from kvstore.frame import HEADER_BYTES, Header

KEY, PAYLOAD = make_key("a"), make_payload("a", 5000)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskBackend]:
    with closing(DiskBackend(tmp_path)) as disk:
        yield disk


def later(header: Header) -> Header:
    return replace(header, expiry=LATER)


def file_of(folder: Path) -> Path:
    return next((folder / "v1" / "blocks").rglob(KEY.hex()))


def journalled(folder: Path) -> Header:
    """Return the header that a process which was killed now would be found with."""
    return Header.unpack(replay((folder / "v1" / "journal").read_bytes())[KEY].header)


def test_file_and_journal_have_it_at_once_and_nothing_else_moves(disk: DiskBackend, tmp_path: Path) -> None:
    header = put(disk, KEY, PAYLOAD)
    assert disk.amend(KEY, later)
    assert file_of(tmp_path).read_bytes() == later(header).pack() + bytes(4096 - HEADER_BYTES) + PAYLOAD
    assert journalled(tmp_path) == later(header)
    disk.check()


def test_a_crash_between_them_leaves_the_older_end_in_the_journal(disk: DiskBackend, tmp_path: Path) -> None:
    header = put(disk, KEY, PAYLOAD)
    with (
        mock.patch.object(disk._index, "amend", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        disk.amend(KEY, later)
    assert journalled(tmp_path) == header
    assert get(disk, KEY, 5000) == PAYLOAD
    assert disk.amend(KEY, later), "the next one mends it, though the file is ahead"
    assert journalled(tmp_path) == later(header)


def test_a_disk_that_fails_is_a_fault_and_the_block_stays_readable(disk: DiskBackend, tmp_path: Path) -> None:
    header = put(disk, KEY, PAYLOAD)
    failing = mock.patch("os.pwritev", side_effect=OSError(errno.EIO, "broken"))
    with failing, pytest.raises(BackendError, match="amend failed"):
        disk.amend(KEY, later)
    assert get(disk, KEY, 5000) == PAYLOAD
    assert journalled(tmp_path) == header


def test_a_file_that_somebody_removed_or_damaged_is_not_amended(disk: DiskBackend, tmp_path: Path) -> None:
    put(disk, KEY, PAYLOAD)
    path = file_of(tmp_path)
    path.write_bytes(b"?" * 9096)
    assert not disk.amend(KEY, later)
    assert path.read_bytes() == b"?" * 9096
    path.write_bytes(b"?" * 10)
    assert not disk.amend(KEY, later)
    path.unlink()
    assert not disk.amend(KEY, later)
    assert get(disk, KEY, 5000) is None
    disk.check()


def test_a_file_that_came_meanwhile_keeps_what_its_put_says(disk: DiskBackend, tmp_path: Path) -> None:
    put(disk, KEY, PAYLOAD)
    rewrite = FrameFiles.rewrite_header

    def late(files: FrameFiles, path: str, change: object) -> bytes | None:
        written = rewrite(files, path, change)  # type: ignore[arg-type]  # it is handed on
        put(disk, KEY, make_payload("b", 5000))
        return written

    with mock.patch.object(FrameFiles, "rewrite_header", late):
        assert not disk.amend(KEY, later)
    assert get(disk, KEY, 5000) == make_payload("b", 5000)
    assert journalled(tmp_path).expiry != LATER


def test_a_closed_backend_amends_nothing(disk: DiskBackend) -> None:
    put(disk, KEY, PAYLOAD)
    disk.close()
    assert not disk.amend(KEY, later)
