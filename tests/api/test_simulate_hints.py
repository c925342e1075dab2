"""What a replay tells policies after each request."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from api.cli import build_cli
from api.simulate.hints import Hints, hints_of
from api.simulate.tier import TracedTier
from api.simulate.trace import PrefixTree, Trace, TracedRequest
from kvstore.hints import Hint
from policies.lru import LeafFirstLRU
from tests.policies.agents import SAID_TO_END, agents, convince


def trace_of(*requests: tuple[list[int], int | None, str | None]) -> Trace:
    """Return a trace of requests: the hashes of their prompts, session and stop reason."""
    tree = PrefixTree()
    traced = [
        TracedRequest(float(at_ms), 4 * len(prompt), tree.walk(prompt), session, stop)
        for at_ms, (prompt, session, stop) in enumerate(requests)
    ]
    return Trace("made up", 4, traced, len(tree))


TRACE = trace_of(([1], 1, "tool_use"), ([2], 2, None), ([3], None, None), ([1, 4], 1, "end_turn"))


def test_nothing_is_told_unless_it_is_asked_for() -> None:
    assert hints_of(TRACE, Hints.NONE) is None


def test_a_trace_tells_why_answers_ended() -> None:
    assert hints_of(TRACE, Hints.TRACE) == [Hint(stop="tool_use"), Hint(), Hint(), Hint(stop="end_turn")]


def test_hindsight_knows_the_last_request_of_each_session() -> None:
    assert hints_of(TRACE, Hints.HINDSIGHT) == [
        Hint(stop="tool_use"), Hint(ends_session=True), Hint(), Hint(ends_session=True, stop="end_turn"),
    ]  # fmt: skip


def test_replays_are_told_what_an_engine_tells() -> None:
    """A failed answer says nothing, and a session that is over has no pause."""
    failed, ended = (
        TracedRequest(0.0, 4, TRACE.requests[0].blocks, stop=stop, end_session=True, expected_pause_s=60.0)
        for stop in ("error", "length")
    )
    trace = Trace("made up", 4, [failed, ended], TRACE.num_blocks)
    assert hints_of(trace, Hints.TRACE) == [None, Hint(ends_session=True, stop="length")]


def test_a_hint_is_about_the_request_it_follows() -> None:
    trace = trace_of(([1], 1, None), ([2], 2, None), ([3], 3, None))
    for hints, left in ((None, 2), ([Hint(), SAID_TO_END, Hint()], 1)):
        policy = LeafFirstLRU()
        convince(policy)
        tier = TracedTier(trace, policy, 2, hints=hints)
        for number in range(3):
            tier.serve(number)
        assert tier.resident() == {trace.keys[left - 1], trace.keys[2]}
        tier.check()


def made_up(file: Path) -> Path:
    """Write a trace of agents' sessions."""
    file.write_text("".join(
        json.dumps(
            {
                "timestamp": 1000 * turn.at_s,
                "input_length": 512 * len(turn.keys),
                "hash_ids": [key.decode() for key in turn.keys],
                "session": turn.keys[-1].split()[0].decode(),
            }
        )
        + "\n"
        for turn in agents(150)
    ))  # fmt: skip
    return file


def hits_of(tmp_path: Path, *options: str) -> float:
    trace, file = made_up(tmp_path / "trace.jsonl"), tmp_path / "cells.json"
    arguments = "--policy", "lru", "--capacity-blocks", "240", "--json", str(file), *options
    outcome = CliRunner().invoke(build_cli(), ["simulate", str(trace), *arguments])
    assert outcome.exit_code == 0, outcome.output
    [cell] = json.loads(file.read_text())["cells"]
    ratio: float = cell["token_hit_ratio"]
    return ratio


def test_hints_of_a_trace_count_only_where_they_are_asked_for(tmp_path: Path) -> None:
    untold = hits_of(tmp_path)
    assert hits_of(tmp_path, "--hints", "none") == untold
    assert hits_of(tmp_path, "--hints", "hindsight") > untold + 0.01
