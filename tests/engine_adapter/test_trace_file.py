"""A recorded trace holds digests, lengths, times and hints alone, within its bounds."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine_adapter.trace_file import TraceFile
from kvstore.errors import ConfigError
from kvstore.served import ServedPrompt

KEYS = tuple(bytes([number]) * 16 for number in range(1, 6))
SERVED = ServedPrompt(
    at_ms=1_700_000_000_123, block_tokens=4, keys=KEYS[:3], input_tokens=13, answer_keys=KEYS[3:],
    output_tokens=8, namespace=b"n" * 16, tenant="7e4a" * 8, tokens_by_tier={"host": 8}, stop="length",
    ttl_s=60.0, session="conversation one", end_session=True, expected_pause_s=2.0,
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


@pytest.fixture
def file(path: Path) -> Iterator[TraceFile]:
    file = TraceFile(path, 1 << 20, 4, 3600.0)
    yield file
    file.close()


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_header_names_the_form_and_a_line_each_request(path: Path, file: TraceFile) -> None:
    file.write(SERVED)
    file.write(ServedPrompt(at_ms=1_700_000_000_000, block_tokens=4, keys=KEYS[:2], input_tokens=9))
    file.flush()
    header, first, second = lines(path)
    assert header == {"form": "prefixd-trace", "version": 1, "block_tokens": 4, "default_ttl_s": 3600.0}
    assert (first["timestamp"], first["input_length"], first["output_length"]) == (1_700_000_000_123, 13, 8)
    assert (len(first["hash_ids"]), len(first["answer_ids"])) == (3, 2)
    assert (first["stop"], first["ttl_s"], first["expected_pause_s"]) == ("length", 60.0, 2.0)
    assert (first["end_session"], first["tokens_by_tier"]) == (True, {"host": 8})
    assert second["hash_ids"] == first["hash_ids"][:2]
    assert set(second) == {"timestamp", "input_length", "output_length", "hash_ids"}
    assert file.status.num_recorded == 2


def test_nothing_in_it_can_be_guessed_or_compared_with_another_file(path: Path, file: TraceFile) -> None:
    other = TraceFile(path.with_name("other"), 1 << 20, 4)
    for recording in (file, other):
        recording.write(SERVED)
        recording.close()
    text = path.read_text()
    for secret in (SERVED.session, SERVED.tenant, *(key.hex() for key in KEYS)):
        assert str(secret) not in text
    ours, theirs = lines(path)[1], lines(path.with_name("other"))[1]
    for name in ("session", "tenant"):
        assert ours[name] != theirs[name]
    assert not {*ours["hash_ids"]} & {*theirs["hash_ids"]}


def test_its_owner_alone_may_read_it(path: Path, file: TraceFile) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_it_keeps_to_its_bytes_and_the_last_requests_stay(path: Path) -> None:
    file = TraceFile(path, 4000, 4)
    both = [path, path.with_name("trace.jsonl.1")]
    for number in range(100):
        file.write(replace(SERVED, at_ms=number))
        file.flush()
        assert sum(one.stat().st_size for one in both if one.exists()) <= 4000
    file.close()
    for one in both:
        assert lines(one)[0]["form"] == "prefixd-trace"
        assert stat.S_IMODE(one.stat().st_mode) == 0o600
    kept = [line["timestamp"] for one in reversed(both) for line in lines(one)[1:]]
    assert kept == list(range(100 - len(kept), 100))
    assert len(kept) > 5
    (older, newer) = (lines(one)[1]["hash_ids"] for one in both)
    assert older != newer


def test_a_request_that_never_fits_is_left_out_and_counted(path: Path) -> None:
    file = TraceFile(path, 2000, 4)
    file.write(replace(SERVED, keys=KEYS * 100))
    file.write(SERVED)
    file.close()
    assert (file.status.num_left_out, file.status.num_recorded, len(lines(path))) == (1, 1, 2)


def test_the_recording_before_is_put_aside(path: Path, file: TraceFile) -> None:
    file.write(SERVED)
    file.close()
    TraceFile(path, 1 << 20, 4).close()
    assert len(lines(path)) == 1
    assert len(lines(path.with_name("trace.jsonl.1"))) == 2


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.1"])
def test_what_is_no_recording_is_never_replaced(path: Path, name: str) -> None:
    path.with_name(name).write_text("my diary")
    with pytest.raises(ConfigError, match=f"{name} is no recording and is not replaced"):
        TraceFile(path, 1 << 20, 4)
    assert path.with_name(name).read_text() == "my diary"


def test_a_link_is_not_followed(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere"))
    with pytest.raises(ConfigError, match="is no recording"):
        TraceFile(path, 1 << 20, 4)


def test_two_servers_do_not_record_to_one_file(path: Path, file: TraceFile) -> None:
    with pytest.raises(ConfigError, match="another server records to"):
        TraceFile(path, 1 << 20, 4)
    file.close()
    TraceFile(path, 1 << 20, 4).close()


def test_a_folder_that_is_not_there_is_one_clear_line(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"record_trace: .*cannot be written: No such file"):
        TraceFile(path.parent / "nowhere" / "trace", 1 << 20, 4)


def test_what_cannot_be_written_ends_the_recording_and_nothing_else(path: Path, file: TraceFile) -> None:
    class Full:
        def write(self, _: bytes) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            raise OSError(28, "No space left on device")

    whole, file._file = file._file, Full()  # type: ignore[assignment]  # a disk that is full
    assert whole is not None
    whole.close()
    for _ in range(2):
        file.write(SERVED)
        file.flush()
    assert file.status.trouble == "cannot be written: No space left on device"
    assert file.status.num_recorded == 0
