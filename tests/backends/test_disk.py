from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from backends import disk_frames, disk_index
from backends.disk import DiskBackend
from backends.disk_journal import RECORD_BYTES, Entry, deleted_record, put_record, replay
from kvstore.arena import Arena
from kvstore.conformance.amending import AmendingConformance
from kvstore.conformance.backend import (
    get,
    make_header,
    make_key,
    make_payload,
    put,
)
from kvstore.errors import BackendError, OutOfSpaceError, TierLockedError
from kvstore.frame import FRAME_VERSION, HEADER_BYTES, Expiry, Header, checksum
from kvstore.seams import Discovering

BLOCK_BYTES = 8192
FILE_BYTES = 4096 + BLOCK_BYTES


def block_path(folder: Path, key: bytes) -> Path:
    return folder / "v1" / "blocks" / key.hex()[:2] / key.hex()


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def discovered(disk: DiskBackend) -> list[Header]:
    found: list[Header] = []
    disk.discover(found.append, lambda: False)
    return found


def writing_half_then(error_number: int) -> AbstractContextManager[object]:
    """Every file write stores a part of its bytes and then reports ``error_number``."""
    real_pwritev = os.pwritev

    def pwritev(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        real_pwritev(descriptor, buffers[:1], offset)
        raise OSError(error_number, os.strerror(error_number))

    return mock.patch("os.pwritev", pwritev)


class DiskConformance(AmendingConformance):
    survives = True

    def make_backend(self, tmp_path: Path) -> DiskBackend:
        return DiskBackend(tmp_path / "kv")

    def break_medium(self, backend: object) -> AbstractContextManager[object]:  # noqa: ARG002
        return writing_half_then(errno.ENOSPC)


class TestDirectDisk(DiskConformance):
    @pytest.fixture(autouse=True)
    def _direct(self, tmp_path: Path) -> None:
        with closing(DiskBackend(tmp_path / "probe")) as disk:
            if disk.stats().facts["io"] != "direct":
                pytest.skip("this file system has no direct I/O")


class TestBufferedDisk(DiskConformance):
    @pytest.fixture(autouse=True)
    def _buffered(self) -> Iterator[None]:
        with mock.patch.object(disk_frames, "allows_direct_io", return_value=False):
            yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def disk(folder: Path) -> Iterator[DiskBackend]:
    with closing(DiskBackend(folder)) as disk:
        yield disk


# Files


@pytest.mark.parametrize("nbytes", [1, 4096, 5000, 65536])
def test_a_file_is_a_padded_header_and_the_payload(disk: DiskBackend, folder: Path, nbytes: int) -> None:
    key, payload = make_key("a"), make_payload("a", nbytes)
    header = put(disk, key, payload)
    assert block_path(folder, key).read_bytes() == header.pack() + bytes(4096 - HEADER_BYTES) + payload


def test_padding_is_zero_whatever_was_read_before(disk: DiskBackend, folder: Path) -> None:
    put(disk, make_key("a"), make_payload("a", BLOCK_BYTES))
    path = block_path(folder, make_key("a"))
    path.write_bytes(path.read_bytes().replace(bytes(4096 - HEADER_BYTES), b"?" * (4096 - HEADER_BYTES)))
    assert get(disk, make_key("a"), BLOCK_BYTES) == make_payload("a", BLOCK_BYTES)
    put(disk, make_key("b"), make_payload("b", BLOCK_BYTES))
    padding = block_path(folder, make_key("b")).read_bytes()[HEADER_BYTES:4096]
    assert padding == bytes(4096 - HEADER_BYTES)


@pytest.mark.parametrize("nbytes", [4096, 5000, 65536, 70_000])
def test_the_slots_of_an_arena_are_read_and_written_in_place(disk: DiskBackend, nbytes: int) -> None:
    arena = Arena(1 << 20)
    source, target = arena.allocate(nbytes), arena.allocate(nbytes)
    assert source is not None
    assert target is not None
    source.view[:] = make_payload("a", nbytes)
    disk.put(make_key("a"), memoryview(make_header(make_key("a"), b"").pack()), source.view)
    assert disk.get_into(make_key("a"), memoryview(bytearray(HEADER_BYTES)), target.view)
    assert target.view == source.view


def test_what_is_charged_is_what_the_file_system_says(disk: DiskBackend, folder: Path) -> None:
    for name, nbytes in enumerate((1, 4096, 4097, 70_000)):
        put(disk, make_key(name), make_payload(name, nbytes))
    on_disk = sum(path.stat().st_blocks * 512 for path in files_below(folder / "v1" / "blocks"))
    assert disk.stats().occupied_bytes == on_disk


def test_a_file_that_is_gone_is_a_miss_and_no_longer_charged(disk: DiskBackend, folder: Path) -> None:
    put(disk, make_key("a"), make_payload("a", BLOCK_BYTES))
    block_path(folder, make_key("a")).unlink()
    assert get(disk, make_key("a"), BLOCK_BYTES) is None
    assert disk.stats().occupied_bytes == 0
    disk.delete(make_key("a"))


def test_a_block_put_while_its_old_file_was_found_missing_stays(disk: DiskBackend, folder: Path) -> None:
    key = make_key("a")
    put(disk, key, make_payload("old", BLOCK_BYTES))
    block_path(folder, key).unlink()
    real_open = os.open

    def put_right_after(path: str, flags: int, *mode: int) -> int:
        try:
            return real_open(path, flags, *mode)
        except FileNotFoundError:
            put(disk, key, make_payload("new", BLOCK_BYTES))
            raise

    with mock.patch("os.open", put_right_after):
        assert get(disk, key, BLOCK_BYTES) is None
    assert get(disk, key, BLOCK_BYTES) == make_payload("new", BLOCK_BYTES)
    disk.check()


@pytest.mark.parametrize("nbytes", [0, 100, 4096, FILE_BYTES - 1, FILE_BYTES + 1, FILE_BYTES + 4096])
def test_a_file_of_another_length_is_a_miss(disk: DiskBackend, folder: Path, nbytes: int) -> None:
    put(disk, make_key("a"), make_payload("a", BLOCK_BYTES))
    os.truncate(block_path(folder, make_key("a")), nbytes)
    assert get(disk, make_key("a"), BLOCK_BYTES) is None


def test_a_flipped_byte_is_handed_on_for_the_store_to_find(disk: DiskBackend, folder: Path) -> None:
    key = make_key("a")
    header = put(disk, key, make_payload("a", BLOCK_BYTES))
    data = bytearray(block_path(folder, key).read_bytes())
    data[4096 + 17] ^= 1
    block_path(folder, key).write_bytes(data)
    payload = memoryview(bytearray(BLOCK_BYTES))
    assert disk.get_into(key, memoryview(bytearray(HEADER_BYTES)), payload)
    assert checksum(payload) != header.checksum


def test_manifests_lie_beside_the_blocks(disk: DiskBackend, folder: Path) -> None:
    disk.put_manifest(b"\xab" * 16, '{"label": "one"}')
    disk.put_manifest(b"\xab" * 16, '{"label": "two"}')
    manifest = folder / "v1" / "namespaces" / f"{'ab' * 16}.json"
    assert json.loads(manifest.read_text()) == {"label": "two"}
    assert files_below(folder / "v1" / "tmp") == []


def test_folders_and_files_are_for_their_owner_alone(disk: DiskBackend, folder: Path) -> None:
    put(disk, make_key("a"), make_payload("a", BLOCK_BYTES))
    modes = {path.stat().st_mode & 0o077 for path in [folder, *folder.rglob("*")] if path.name != "tmp"}
    assert modes == {0}


# Opening


def test_missing_parents_are_made_for_their_owner_alone(tmp_path: Path) -> None:
    with closing(DiskBackend(tmp_path / "a" / "b" / "kv")) as disk:
        put(disk, make_key("a"), b"x")
        assert get(disk, make_key("a"), 1) == b"x"
    assert (tmp_path / "a").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_in_the_way_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "kv").write_text("not a folder")
    with pytest.raises(
        BackendError, match=r"disk: open failed: .*kv.* cannot be used: (File exists|Not a dir)"
    ):
        DiskBackend(tmp_path / "kv" / below)


def test_a_read_only_file_system_is_named(folder: Path) -> None:
    read_only = OSError(errno.EROFS, os.strerror(errno.EROFS))
    with (
        mock.patch.object(Path, "mkdir", side_effect=read_only),
        pytest.raises(BackendError, match="cannot be used: Read-only file system"),
    ):
        DiskBackend(folder)


def test_a_second_process_is_refused_with_the_first_ones_id(folder: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from backends.disk import DiskBackend\n"
        "disk = DiskBackend(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read(); disk.close()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    with pytest.raises(TierLockedError, match=f"in use by process {other.pid}"):
        DiskBackend(folder)
    other.communicate("")
    DiskBackend(folder).close()


def test_a_closed_backend_reads_nothing_and_refuses_writes(folder: Path) -> None:
    disk = DiskBackend(folder)
    put(disk, make_key("a"), make_payload("a", BLOCK_BYTES))
    disk.close()
    assert get(disk, make_key("a"), BLOCK_BYTES) is None
    with pytest.raises(BackendError, match="closed"):
        put(disk, make_key("b"), make_payload("b", BLOCK_BYTES))
    with pytest.raises(BackendError, match="closed"):
        disk.put_manifest(b"\xab" * 16, "{}")
    assert not list((folder / "v1" / "namespaces").iterdir()), "another process may have the folder by now"


def test_close_waits_for_a_write_under_way(folder: Path) -> None:
    disk = DiskBackend(folder)
    writing, go_on = threading.Event(), threading.Event()
    pwritev = os.pwritev

    def slow(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        writing.set()
        go_on.wait()
        return pwritev(descriptor, buffers, offset)

    with mock.patch("os.pwritev", slow):
        block = (disk, make_key("a"), make_payload("a", BLOCK_BYTES))
        writer = threading.Thread(target=put, args=block, daemon=True)
        writer.start()
        writing.wait()
        closer = threading.Thread(target=disk.close, daemon=True)
        closer.start()
        closer.join(0.05)
        assert closer.is_alive()
        go_on.set()
        writer.join()
        closer.join()
    with closing(DiskBackend(folder)) as again:
        assert get(again, make_key("a"), BLOCK_BYTES) == make_payload("a", BLOCK_BYTES)


# A medium that fails


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_room_is_out_of_space_and_leaves_no_file(disk: DiskBackend, folder: Path, number: int) -> None:
    with writing_half_then(number), pytest.raises(OutOfSpaceError, match="disk: put failed"):
        put(disk, make_key("a"), make_payload("a", BLOCK_BYTES))
    assert [path.name for path in files_below(folder / "v1") if path.name not in {"lock", "journal"}] == []
    assert disk.stats().occupied_bytes == 0


def test_a_file_that_is_cut_short_means_that_the_medium_is_full(disk: DiskBackend) -> None:
    with mock.patch("os.pwritev", return_value=1), pytest.raises(OutOfSpaceError, match="No space left"):
        put(disk, make_key("a"), make_payload("a", BLOCK_BYTES))


def test_a_file_size_limit_is_out_of_space(folder: Path) -> None:
    script = (
        "import resource, sys; from pathlib import Path; from backends.disk import DiskBackend\n"
        "from kvstore.conformance.backend import *; from kvstore.errors import OutOfSpaceError\n"
        "disk = DiskBackend(Path(sys.argv[1])); put(disk, make_key('a'), make_payload('a', 8192))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))\n"
        "try: put(disk, make_key('b'), make_payload('b', 65536))\n"
        "except OutOfSpaceError: print('out of space', get(disk, make_key('b'), 65536), flush=True)\n"
        "print(get(disk, make_key('a'), 8192) == make_payload('a', 8192)); disk.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["out of space None", "True"]
    assert len(files_below(folder / "v1" / "blocks")) == 1
    assert files_below(folder / "v1" / "tmp") == []


def test_another_write_error_is_a_fault_of_the_backend(disk: DiskBackend) -> None:
    with writing_half_then(errno.EIO), pytest.raises(BackendError, match="Input/output error") as caught:
        put(disk, make_key("a"), make_payload("a", BLOCK_BYTES))
    assert not isinstance(caught.value, OutOfSpaceError)


def test_a_file_that_cannot_be_removed_stays_charged_and_stops_nothing(disk: DiskBackend) -> None:
    for name in "ab":
        put(disk, make_key(name), make_payload(name, BLOCK_BYTES))
    refused = PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    with (
        mock.patch.object(Path, "unlink", side_effect=refused),
        pytest.raises(BackendError, match="disk: delete failed: Operation not permitted"),
    ):
        disk.delete(make_key("a"))
    assert get(disk, make_key("a"), BLOCK_BYTES) is None
    assert disk.stats().occupied_bytes == 2 * FILE_BYTES
    assert disk.stats().facts["num_files_not_removed"] == "1"
    assert get(disk, make_key("b"), BLOCK_BYTES) == make_payload("b", BLOCK_BYTES)
    disk.check()
    disk.delete(make_key("a"))
    assert disk.stats().occupied_bytes == FILE_BYTES
    disk.check()


def test_a_journal_that_cannot_be_written_loses_no_block(folder: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with closing(DiskBackend(folder)) as disk, mock.patch("os.pwrite", side_effect=full):
        put(disk, make_key("a"), make_payload("a", BLOCK_BYTES))
        assert get(disk, make_key("a"), BLOCK_BYTES) == make_payload("a", BLOCK_BYTES)
        assert disk.stats().facts["num_journal_records_lost"] == "1"
        disk.close()
    with closing(DiskBackend(folder)) as again:
        assert list(again.recover()) == []
        assert [header.key for header in discovered(again)] == [make_key("a")]


# After a crash


def test_without_close_everything_is_recovered_in_the_order_of_writing(folder: Path) -> None:
    disk = DiskBackend(folder)
    headers = [put(disk, make_key(name), make_payload(name, BLOCK_BYTES)) for name in "abc"]
    disk.delete(make_key("b"))
    crash(disk)
    with closing(DiskBackend(folder)) as again:
        assert list(again.recover()) == [headers[0], headers[2]]
        assert discovered(again) == []


def test_a_torn_tail_is_cut_and_the_rest_kept(folder: Path) -> None:
    disk = DiskBackend(folder)
    headers = [put(disk, make_key(name), make_payload(name, BLOCK_BYTES)) for name in "abc"]
    crash(disk)
    journal = folder / "v1" / "journal"
    os.truncate(journal, journal.stat().st_size - 100)
    disk = DiskBackend(folder)
    assert list(disk.recover()) == headers[:2]
    headers.append(put(disk, make_key("d"), make_payload("d", BLOCK_BYTES)))
    crash(disk)
    with closing(DiskBackend(folder)) as again:
        assert list(again.recover()) == [headers[0], headers[1], headers[3]]
        assert discovered(again) == [headers[2]]
        assert get(again, make_key("c"), BLOCK_BYTES) == make_payload("c", BLOCK_BYTES)


def test_a_spoilt_record_costs_only_its_own_block(folder: Path) -> None:
    disk = DiskBackend(folder)
    headers = [put(disk, make_key(name), make_payload(name, BLOCK_BYTES)) for name in "abc"]
    crash(disk)
    journal = folder / "v1" / "journal"
    data = bytearray(journal.read_bytes())
    data[RECORD_BYTES + 50] ^= 1
    journal.write_bytes(data)
    with closing(DiskBackend(folder)) as again:
        assert list(again.recover()) == [headers[0], headers[2]]


def test_a_missing_journal_is_made_up_for_by_the_sweep(folder: Path) -> None:
    with closing(DiskBackend(folder)) as disk:
        headers = [put(disk, make_key(name), make_payload(name, BLOCK_BYTES)) for name in "abc"]
    (folder / "v1" / "journal").unlink()
    with closing(DiskBackend(folder)) as again:
        assert isinstance(again, Discovering)
        assert list(again.recover()) == []
        assert sorted(discovered(again), key=lambda header: header.key) == sorted(
            headers, key=lambda header: header.key
        )
        assert again.stats().occupied_bytes == 3 * FILE_BYTES
        again.check()


def test_the_sweep_removes_leftovers_and_broken_blocks_and_nothing_else(folder: Path) -> None:
    with closing(DiskBackend(folder)) as disk:
        sound = put(disk, make_key("sound"), make_payload("sound", BLOCK_BYTES))
    journal = folder / "v1" / "journal"
    journal.unlink()
    data = block_path(folder, sound.key).read_bytes()
    leftover = folder / "v1" / "tmp" / "123-half"
    leftover.write_bytes(data[:5000])
    short, flipped, swapped, empty = (make_key(name) for name in ("short", "flipped", "swapped", "empty"))
    header_only = make_header(short, make_payload("short", BLOCK_BYTES)).pack()
    broken_contents = {short: header_only, flipped: data[:60] + b"?" + data[61:], swapped: data, empty: b""}
    broken = [block_path(folder, key) for key in broken_contents]
    for path, content in zip(broken, broken_contents.values(), strict=True):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    stranger = folder / "v1" / "blocks" / "README"
    stranger.write_bytes(b"hello")
    other_format = folder / "v2" / "blocks" / "one"
    other_format.parent.mkdir(parents=True)
    other_format.write_bytes(bytes(1000))
    with closing(DiskBackend(folder)) as again:
        assert discovered(again) == [sound]
        assert not leftover.exists()
        assert [path.exists() for path in broken] == [False] * 4
        assert stranger.exists()
        assert other_format.exists()
        foreign = int(again.stats().facts["foreign_bytes"])
        assert 5 + 1000 <= foreign < 5 + 1000 + 3 * 4096  # folders have a size as well
        assert again.stats().occupied_bytes == FILE_BYTES


def test_blocks_of_another_frame_version_are_named_whether_the_journal_knows_them_or_not(
    folder: Path,
) -> None:
    with closing(DiskBackend(folder)) as disk:
        ours = put(disk, make_key("ours"), make_payload("ours", BLOCK_BYTES))
        theirs = replace(
            make_header(make_key("theirs"), make_payload("theirs", 5000)), version=FRAME_VERSION + 1
        )
        disk.put(theirs.key, memoryview(theirs.pack()), memoryview(make_payload("theirs", 5000)))
    known = Header(b"", theirs.key, b"", 0, 5000, 0, 0, Expiry(), 0, version=FRAME_VERSION + 1)
    with closing(DiskBackend(folder)) as again:
        assert list(again.recover()) == [ours, known]
    (folder / "v1" / "journal").unlink()
    with closing(DiskBackend(folder)) as again:
        assert sorted(discovered(again), key=lambda header: header.version) == [ours, known]
        assert again.stats().occupied_bytes == FILE_BYTES + 4096 + 8192
        assert block_path(folder, theirs.key).exists()
        again.delete(theirs.key)
        assert again.stats().occupied_bytes == FILE_BYTES
        again.check()


def test_the_sweep_leaves_alone_what_is_being_written(disk: DiskBackend, folder: Path) -> None:
    found: list[Header] = []
    ours = disk._folder.temporary()  # as a put under way has one
    ours.write_bytes(b"half")
    put(disk, make_key("a"), make_payload("a", BLOCK_BYTES))
    disk.discover(found.append, lambda: False)
    assert (found, ours.exists()) == ([], True)


def test_the_sweep_stops_when_told(folder: Path) -> None:
    with closing(DiskBackend(folder)) as disk:
        for name in range(5):
            put(disk, make_key(name), make_payload(name, BLOCK_BYTES))
    (folder / "v1" / "journal").unlink()
    with closing(DiskBackend(folder)) as again:
        found: list[Header] = []
        again.discover(found.append, lambda: len(found) == 2)
        assert len(found) == 2


def test_a_discovered_block_is_the_first_to_go(folder: Path) -> None:
    with closing(DiskBackend(folder)) as disk:
        put(disk, make_key("old"), make_payload("old", BLOCK_BYTES))
    (folder / "v1" / "journal").unlink()
    with closing(DiskBackend(folder)) as disk:
        put(disk, make_key("new"), make_payload("new", BLOCK_BYTES))
        discovered(disk)
    with closing(DiskBackend(folder)) as again:
        assert [header.key for header in again.recover()] == [make_key("old"), make_key("new")]


WRITER = """
import sys
from pathlib import Path
from backends.disk import DiskBackend
from kvstore.conformance.backend import make_key, make_payload, put
disk = DiskBackend(Path(sys.argv[1]))
print("writing", flush=True)
step = 0
while True:
    put(disk, make_key(step % 40), make_payload((sys.argv[2], step), 65536))
    if step % 7 == 0:
        disk.delete(make_key((step + 20) % 40))
    step += 1
"""


def test_killed_at_any_moment_every_block_that_is_visible_is_whole(folder: Path) -> None:
    num_seen = 0
    for attempt in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, folder, str(attempt)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        time.sleep(0.05 + 0.037 * attempt)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        with closing(DiskBackend(folder)) as disk:
            recovered = [header.key for header in disk.recover()]
            new = [header.key for header in discovered(disk)]
            assert len(set(recovered + new)) == len(recovered + new)
            for key in recovered + new:
                num_seen += get(disk, key, 65536) is not None  # verifies the frame
            disk.check()
            on_disk = sum(path.stat().st_size for path in files_below(folder / "v1" / "blocks"))
            assert disk.stats().occupied_bytes == on_disk
            assert files_below(folder / "v1" / "tmp") == []
    assert num_seen > 50


# The journal


def test_a_journal_of_mostly_dead_records_is_written_anew(folder: Path) -> None:
    journal = folder / "v1" / "journal"
    with mock.patch.object(disk_index, "MIN_DEAD_RECORDS", 10):
        disk = DiskBackend(folder)
        for step in range(60):
            put(disk, make_key(step % 5), make_payload(step, 100))
        assert journal.stat().st_size <= 20 * RECORD_BYTES
        crash(disk)
    with closing(DiskBackend(folder)) as again:
        assert [header.key for header in again.recover()] == [make_key(step % 5) for step in range(55, 60)]
    assert journal.stat().st_size == 5 * RECORD_BYTES


def test_a_hundred_thousand_blocks_are_replayed_in_well_under_a_second() -> None:
    header = make_header(make_key("a"), b"").pack()
    records = [put_record(number.to_bytes(16, "big"), Entry(header, 4096)) for number in range(100_000)]
    records += [deleted_record(number.to_bytes(16, "big")) for number in range(0, 100_000, 2)]
    data = b"".join(records)
    began_s = time.process_time()
    entries = replay(data)
    assert time.process_time() - began_s < 1
    assert list(entries) == [number.to_bytes(16, "big") for number in range(1, 100_000, 2)]


# Any order of events


def crash(disk: DiskBackend) -> None:
    """Let go of the folder as a killed process does: nothing is finished, the lock is gone."""
    disk._folder.unlock()  # there is no kinder way to die


class DiskMachine(RuleBasedStateMachine):
    """A disk backend holds what a dictionary would, through restarts and crashes."""

    make_folder: Callable[[], Path]

    @initialize()
    def open(self) -> None:
        self.folder = self.make_folder()
        self.disk = DiskBackend(self.folder)
        self.model: dict[bytes, bytes] = {}

    @rule(name=st.integers(0, 5), version=st.integers(0, 99), nbytes=st.sampled_from([1, 4096, 6000]))
    def put(self, name: int, version: int, nbytes: int) -> None:
        payload = make_payload(version, nbytes)
        put(self.disk, make_key(name), payload)
        self.model.pop(make_key(name), None)
        self.model[make_key(name)] = payload

    @rule(name=st.integers(0, 5), nbytes=st.sampled_from([1, 4096, 6000]))
    def put_fails(self, name: int, nbytes: int) -> None:
        with writing_half_then(errno.ENOSPC), pytest.raises(OutOfSpaceError):
            put(self.disk, make_key(name), make_payload("half", nbytes))
        self.model.pop(make_key(name), None)

    @rule(name=st.integers(0, 6))
    def delete(self, name: int) -> None:
        self.disk.delete(make_key(name))
        self.model.pop(make_key(name), None)

    @rule(name=st.integers(0, 6))
    def get(self, name: int) -> None:
        expected = self.model.get(make_key(name))
        assert get(self.disk, make_key(name), len(expected or b"x")) == expected
        if expected is not None:
            self.model[make_key(name)] = self.model.pop(make_key(name))

    @rule()
    def restart(self) -> None:
        self.disk.close()
        self.disk = DiskBackend(self.folder)
        assert [header.key for header in self.disk.recover()] == list(self.model)

    @rule()
    def crash_and_start(self) -> None:
        crash(self.disk)
        self.disk = DiskBackend(self.folder)
        recovered = [header.key for header in self.disk.recover()]
        assert sorted(recovered) == sorted(self.model)
        self.model = {key: self.model[key] for key in recovered}

    @rule()
    def lose_the_journal(self) -> None:
        crash(self.disk)
        (self.folder / "v1" / "journal").unlink()
        self.disk = DiskBackend(self.folder)
        assert sorted(header.key for header in discovered(self.disk)) == sorted(self.model)
        crash(self.disk)
        self.disk = DiskBackend(self.folder)
        self.model = {header.key: self.model[header.key] for header in self.disk.recover()}

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        if hasattr(self, "disk"):
            self.disk.check()
            held = sum(self.disk.footprint(len(payload)) for payload in self.model.values())
            assert self.disk.stats().occupied_bytes == held

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            for key, payload in self.model.items():
                assert get(self.disk, key, len(payload)) == payload
            self.disk.close()


def test_any_order_of_events(tmp_path_factory: pytest.TempPathFactory) -> None:
    class Machine(DiskMachine):
        @staticmethod
        def make_folder() -> Path:
            return tmp_path_factory.mktemp("disk")

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
