"""Traces are read in three forms; what cannot be replayed is refused with its line."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from api.simulate.trace import Trace, read_trace
from kvstore.errors import ConfigError, TraceError

TRACES = Path(__file__).parent / "traces"
REQUEST = {"timestamp": 5, "input_length": 1200, "output_length": 3, "hash_ids": [1, 2, 3]}
CHAT = {
    "chat_id": 7, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 40, "output_length": 13,
    "type": "text", "turn": 1, "hash_ids": [9, 9, 4],
}  # fmt: skip


def write(folder: Path, *lines: Any) -> Path:
    file = folder / "trace.jsonl"
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return file


def blocks_of(trace: Trace) -> list[list[int]]:
    return [list(request.blocks) for request in trace.requests]


def test_mooncakes_form_is_read_plain_and_compressed(tmp_path: Path) -> None:
    plain = read_trace(write(tmp_path, REQUEST, {**REQUEST, "timestamp": 8, "hash_ids": [1, 2, 4]}))
    assert (plain.name, plain.block_tokens, plain.num_blocks, plain.num_accesses) == ("trace", 512, 4, 6)
    assert blocks_of(plain) == [[0, 1, 2], [0, 1, 3]]
    assert [request.at_ms for request in plain.requests] == [5.0, 8.0]
    compressed = tmp_path / "other.jsonl.xz"
    compressed.write_bytes(lzma.compress((tmp_path / "trace.jsonl").read_bytes()))
    assert blocks_of(read_trace(compressed)) == blocks_of(plain)


def test_the_samples_name_each_block_once() -> None:
    agents = read_trace(TRACES / "agents.jsonl.xz")
    with lzma.open(TRACES / "agents.jsonl.xz") as lines:
        hashes = {block for line in lines for block in json.loads(line)["hash_ids"]}
    assert agents.num_blocks == len(hashes) == len(agents.keys)
    assert (agents.requests[0].session, agents.requests[0].stop) == (13, "tool_use")


def test_bailians_form_counts_seconds_and_its_chats_follow_each_other(tmp_path: Path) -> None:
    second = {**CHAT, "chat_id": 8, "parent_chat_id": 7, "timestamp": 70}
    third = {**CHAT, "chat_id": 12, "parent_chat_id": 8, "timestamp": 80}
    cut_off = {**CHAT, "chat_id": 13, "parent_chat_id": 2, "timestamp": 80}
    trace = read_trace(write(tmp_path, CHAT, second, third, cut_off))
    assert (trace.block_tokens, trace.requests[0].at_ms) == (16, 61114.0)
    assert [request.session for request in trace.requests] == [7, 7, 7, 2]


def test_equal_hashes_after_other_prefixes_are_other_blocks(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, CHAT, {**CHAT, "chat_id": 8, "timestamp": 70, "hash_ids": [4, 9]}))
    assert blocks_of(trace) == [[0, 1, 2], [3, 4]]


def test_unknown_fields_and_blank_lines_are_passed_over_and_hashes_may_be_strings(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, "", {**REQUEST, "hash_ids": ["a", "b"], "model": {"x": 1}}, "  "))
    assert blocks_of(trace) == [[0, 1]]


def test_the_size_of_a_block_can_be_given(tmp_path: Path) -> None:
    assert read_trace(write(tmp_path, {**REQUEST, "input_length": 60}), block_tokens=20).block_tokens == 20


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[1]", "it is not a JSON object"),
        ("\x00", "it is not JSON"),
        ({**REQUEST, "timestamp": 4}, "before that of the line above"),
        ({**REQUEST, "timestamp": -1}, "timestamp must be a number from 0 on, not -1"),
        ({**REQUEST, "timestamp": "5"}, "timestamp must be"),
        ({**REQUEST, "timestamp": True}, "timestamp must be"),
        (json.dumps(REQUEST).replace("5,", "NaN,", 1), "timestamp must be"),
        (json.dumps(REQUEST).replace("5,", f"{'9' * 4000},", 1), "timestamp must be"),
        (json.dumps(REQUEST).replace("5,", f"{'9' * 5000},", 1), "it is not JSON"),
        ({"timestamp": 9, "hash_ids": [1]}, "input_length is missing"),
        ({**REQUEST, "input_length": 1.5}, "input_length must be a whole number"),
        ({**REQUEST, "input_length": -1}, "input_length must be a whole number"),
        ({"timestamp": 9, "input_length": 600}, "hash_ids is missing"),
        ({**REQUEST, "hash_ids": None}, "hash_ids must be a list"),
        ({**REQUEST, "hash_ids": [1, [2]]}, "hash_ids must be a list"),
        ({**REQUEST, "hash_ids": [True]}, "hash_ids must be a list"),
        ({**REQUEST, "hash_ids": [1, 2, 3, 4]}, "hash_ids names 4 blocks, but 1200 tokens fill 3 of 512"),
        ({**REQUEST, "session": [1]}, "session must be a number or a string"),
        ({**REQUEST, "stop": 4}, "stop must be a string"),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, line: Any, reason: str) -> None:
    with pytest.raises(TraceError) as refused:
        read_trace(write(tmp_path, REQUEST, "", line))
    assert refused.value.line == 3
    assert reason in refused.value.reason
    assert len(str(refused.value)) < 400


def test_a_chat_needs_its_number(tmp_path: Path) -> None:
    without = {name: value for name, value in CHAT.items() if name != "chat_id"}
    with pytest.raises(TraceError, match="line 2: chat_id is missing"):
        read_trace(write(tmp_path, CHAT, without))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [([], "it holds no request"), ([{**REQUEST, "hash_ids": []}], "no request has a block")],
)
def test_a_trace_without_blocks_is_refused(tmp_path: Path, lines: list[Any], reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        read_trace(write(tmp_path, *lines))


def test_a_damaged_or_absent_file_is_refused(tmp_path: Path) -> None:
    whole = (TRACES / "agents.jsonl.xz").read_bytes()
    for damaged in (whole[:500], whole[:400] + b"\x00" * 64 + whole[464:]):
        (tmp_path / "damaged.xz").write_bytes(damaged)
        with pytest.raises(TraceError, match="damaged"):
            read_trace(tmp_path / "damaged.xz")
    for unreadable in (tmp_path / "absent", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_trace(unreadable)
