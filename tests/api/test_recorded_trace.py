"""A server that records what it serves, and the replay of that recording."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from api.cli import build_cli
from api.serving_config import serving_config
from api.settings import Settings
from api.simulate.tier import TracedTier
from api.simulate.trace import read_trace
from engine_adapter.assemble import Serving, assemble
from engine_adapter.engine.request import Request, Sampling
from engine_adapter.opening import builtin_registry
from engine_adapter.trace_file import TraceFile
from engine_adapter.watching import shadow_tiers
from kvstore.arena import slot_stride
from kvstore.errors import PrefixdError
from kvstore.served import ServedPrompt
from policies.lru import LeafFirstLRU
from policies.shadows import marks_of
from tests.eventually import eventually

BLOCK_TOKENS = 16
HOST_BYTES = 40 * 8192


@pytest.fixture(scope="module")
def trace_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recording") / "trace.jsonl"


@pytest.fixture(scope="module")
def settings(make_settings: Callable[..., Settings], trace_path: Path) -> Settings:
    return make_settings(
        host_bytes=HOST_BYTES, disk_bytes=0, record_trace=trace_path, shadow_policies="lru,arc"
    )


@pytest.fixture(scope="module")
def serving(settings: Settings) -> Iterator[Serving]:
    with closing(assemble(serving_config(settings, is_watched=True))) as serving:
        yield serving


def metrics(client: TestClient) -> dict[str, float]:
    lines = client.get("/metrics").text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def conversations(num: int) -> Iterator[list[int]]:
    """Yield prompts that often begin with an earlier one."""
    random = Random(7)
    known: list[list[int]] = [[]]
    for _ in range(num):
        begin = random.choice(known[-8:])
        prompt = [*begin[:200], *random.choices(range(1, 250), k=random.randrange(20, 80))]
        prompt += [1] * (len(prompt) % BLOCK_TOKENS == 0)  # the last token is always computed
        known.append(prompt)
        yield prompt


def test_the_replay_of_a_recording_hits_what_the_live_tier_did(
    serving: Serving, client: TestClient, trace_path: Path
) -> None:
    block_bytes = serving.model_facts.kv_shape.block_bytes
    capacity = HOST_BYTES // slot_stride(block_bytes)
    for prompt in conversations(60):
        sampling = Sampling(temperature=0, max_tokens=40, ignore_eos=True)
        serving.engine.generate(Request(prompt, sampling, session="one"))
        assert serving.engine.flush()
        serving.engine.clear_pool()
    eventually(lambda: client.get("/admin/shadows").json()["recording"]["num_recorded"] == 60)
    trace = read_trace(trace_path)
    live = [json.loads(line) for line in trace_path.read_text().splitlines()[1:]]
    tier = TracedTier(trace, LeafFirstLRU(), capacity)
    hits = [BLOCK_TOKENS * tier.serve(number) for number in range(60)]
    assert hits == [line.get("tokens_by_tier", {}).get("host", 0) for line in live]
    assert 0 < sum(hits) < sum(BLOCK_TOKENS * len(request.blocks) for request in trace.requests)
    assert len(tier) == capacity
    assert len({request.session for request in trace.requests}) == 1


def test_shadows_are_told_over_http_and_as_metrics(serving: Serving, client: TestClient) -> None:
    eventually(lambda: bool(client.get("/admin/shadows").json()["shadows"]["tiers"]))
    told = client.get("/admin/shadows").json()
    host = told["shadows"]["tiers"]["host"]
    assert (set(host["hit_ratios"]), host["live"]) == ({"lru", "arc"}, "lru")
    assert host["regret"] == max(host["hit_ratios"].values()) - host["hit_ratios"]["lru"]
    assert host["sample_rate"] == 1.0
    assert 0 <= told["shadows"]["core_share"] <= 0.5
    assert told["recording"]["trouble"] is None
    found = metrics(client)
    assert found['prefixd_shadow_hit_ratio{policy="arc",tier="host"}'] == host["hit_ratios"]["arc"]
    assert found['prefixd_shadow_regret{tier="host"}'] == host["regret"]
    assert found['prefixd_shadow_sample_rate{tier="host"}'] == 1.0
    assert "prefixd_shadow_core_share" in found
    assert found["prefixd_shadow_dropped_total"] == 0


def test_what_watches_is_refused_before_the_model_is_read(make_settings: Callable[..., Settings]) -> None:
    for bad, reason in (("lru,,arc", "is not a list of names"), ("lru,nope", "'nope': is not known")):
        with pytest.raises(PrefixdError, match=reason):
            assemble(serving_config(make_settings(shadow_policies=bad, model="/nowhere"), is_watched=True))


@pytest.mark.parametrize("setting", ["device_eviction", "host_eviction", "disk_eviction"])
def test_an_unknown_policy_is_refused_before_the_model_is_read(
    make_settings: Callable[..., Settings], setting: str
) -> None:
    with pytest.raises(PrefixdError, match="'nope': is not known; there are: arc, "):
        assemble(serving_config(make_settings(model="/nowhere", **{setting: "nope"})))


def test_a_shadow_lives_by_its_tiers_own_ttl(make_settings: Callable[..., Settings]) -> None:
    config = serving_config(make_settings(host_ttl_s=1.0, shadow_policies="lru"), is_watched=True)
    tier = shadow_tiers(config, builtin_registry(), {"host": 8})["host"]
    for at_ms in (5_000, 8_000):
        served = ServedPrompt(at_ms, BLOCK_TOKENS, (b"a" * 16,), BLOCK_TOKENS)
        for _ in tier.serve(served, marks_of(served.keys), ()):
            pass
    report = tier.report()
    assert report is not None
    assert report.hit_ratios["lru"] == 0.0


def test_only_a_server_is_watched(make_settings: Callable[..., Settings], tmp_path: Path) -> None:
    settings = make_settings(record_trace=tmp_path / "trace")
    config = serving_config(settings)
    assert (config.shadow_policies, config.record_trace) == ((), None)
    config = serving_config(settings, is_watched=True)
    assert config.shadow_policies == ("lru", "arc", "reuse")
    assert config.record_trace == tmp_path / "trace"
    assert serving_config(make_settings(shadow_policies="none"), is_watched=True).shadow_policies == ()


def test_shadows_live_as_long_as_blocks_of_their_tier(make_settings: Callable[..., Settings]) -> None:
    settings = make_settings(default_ttl_s=60, host_ttl_s=5)
    tiers = shadow_tiers(serving_config(settings, is_watched=True), builtin_registry(), {"host": 100})
    first, again = (ServedPrompt(at_ms, 4, (b"a", b"b"), 8) for at_ms in (0, 5000))
    for served in (first, again):
        for _ in tiers["host"].serve(served, marks_of(served.keys), []):
            pass
    report = tiers["host"].report()
    assert report is not None
    assert set(report.hit_ratios.values()) == {0.0}


HEADER = {"form": "prefixd-trace", "version": 1, "block_tokens": 4, "default_ttl_s": None}
LINE = {"timestamp": 5000, "input_length": 9, "output_length": 4, "hash_ids": ["a", "b"], "answer_ids": ["c"]}


def write(folder: Path, *lines: Any, end: str = "\n") -> Path:
    file = folder / "recorded.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + end)
    return file


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(build_cli(), ["simulate", *map(str, arguments)])


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "trace", 1 << 20, 4, 60.0)
    keys = tuple(bytes([number]) for number in range(4))
    hints: dict[str, Any] = {"session": "s", "end_session": True, "expected_pause_s": 3.0, "stop": "stop"}
    file.write(ServedPrompt(9_000, 4, keys, 17, **hints))
    file.write(ServedPrompt(4_000, 4, keys[:2], 9, keys[2:3], 4, ttl_s=5.0, session="s"))
    file.close()
    trace = read_trace(tmp_path / "trace")
    first, second = trace.requests
    assert (trace.block_tokens, trace.num_blocks) == (4, 4)
    assert (first.at_ms, second.at_ms) == (4_000, 9_000)
    assert [*first.blocks, *first.answer] == list(second.blocks)[:3]
    assert (first.ttl_s, second.ttl_s) == (5.0, 60.0)
    assert first.session == second.session != "s"
    assert (second.stop, second.end_session, second.expected_pause_s) == ("stop", True, 3.0)
    assert (first.end_session, first.expected_pause_s) == (False, None)


def test_what_an_answer_leaves_behind_is_hit(tmp_path: Path) -> None:
    later = {"timestamp": 6000, "input_length": 15, "output_length": 0, "hash_ids": ["a", "b", "c"]}
    file = write(tmp_path, HEADER, later, LINE)  # in the order in which they ended
    done = run(file, "--policy", "lru,OPT", "--capacity-blocks", "8", "--json", tmp_path / "cells.json")
    assert done.exit_code == 0
    for cell in json.loads((tmp_path / "cells.json").read_text())["cells"]:
        assert (cell["token_hit_ratio"], cell["block_hit_ratio"]) == (12 / 24, 3 / 5)


@pytest.mark.parametrize(
    ("ttl_s", "usual_s", "flags", "num_hit"),
    [
        (None, None, [], 2), (None, 1.0, [], 0), (1.0, None, [], 0), (5.0, 1.0, [], 2),
        (None, 1.0, ["--ttl", "9"], 2), (60.0, None, ["--ttl", "1"], 0),
    ],
)  # fmt: skip
def test_blocks_end_as_the_recording_says_unless_told_otherwise(
    tmp_path: Path, ttl_s: float | None, usual_s: float | None, flags: list[str], num_hit: int
) -> None:
    lines = [{**LINE, "ttl_s": ttl_s, "timestamp": at_ms} for at_ms in (5_000, 8_000)]
    file = write(tmp_path, {**HEADER, "default_ttl_s": usual_s}, *lines)
    flags += ["--policy", "lru", "--capacity-blocks", "8", "--json", str(tmp_path / "cells.json")]
    assert run(file, *flags).exit_code == 0
    (cell,) = json.loads((tmp_path / "cells.json").read_text())["cells"]
    assert cell["block_hit_ratio"] == num_hit / 4


def test_a_last_line_that_is_cut_off_is_left_out_with_a_note(tmp_path: Path) -> None:
    done = run(write(tmp_path, HEADER, LINE, json.dumps(LINE)[:40], end=""), "--policy", "lru")
    assert done.exit_code == 0
    assert "line 3, the last one, is cut off and was left out" in done.stdout
    whole = run(write(tmp_path, HEADER, LINE, LINE, end=""), "--policy", "lru")
    assert "cut off" not in whole.stdout
    odd = run(write(tmp_path, HEADER, LINE, {**LINE, "ttl_s": -1}, end=""), "--policy", "lru")
    assert "line 3: ttl_s must be seconds" in odd.stderr  # whole, and not what a server would write


@pytest.mark.parametrize(
    ("lines", "flags", "reason"),
    [
        ([HEADER, json.dumps(LINE)[:40], LINE], [], "line 2: it is not JSON"),
        ([{**HEADER, "version": 2}, LINE], [], "line 1: its form is 'prefixd-trace' of version 2; known is"),
        ([{**HEADER, "form": "other"}, LINE], [], "line 1: its form is 'other' of version 1; known is"),
        ([{**HEADER, "block_tokens": 0}, LINE], [], "line 1: block_tokens must be above 0"),
        ([{**HEADER, "block_tokens": "4"}, LINE], [], "line 1: block_tokens must be a whole number"),
        ([{**HEADER, "default_ttl_s": -1}, LINE], [], "line 1: default_ttl_s must be seconds, from 0 on"),
        ([HEADER, LINE], ["--block-tokens", "8"], "line 1: its blocks are of 4 tokens, whatever --block-tok"),
        ([HEADER, {**LINE, "ttl_s": "long"}], [], "line 2: ttl_s must be seconds"),
        ([HEADER, {**LINE, "ttl_s": 0}], [], "line 2: ttl_s must be seconds, above 0 and at most a century"),
        ([HEADER, {**LINE, "ttl_s": 4e9}], [], "line 2: ttl_s must be seconds, above 0 and at most a cen"),
        ([HEADER, LINE, HEADER, LINE], [], "line 3: another recording begins here"),
        ([HEADER, {**LINE, "answer_ids": 5}], [], "line 2: answer_ids must be a list"),
        (
            [HEADER, {**LINE, "answer_ids": ["c"] * 9}],
            [],
            "line 2: answer_ids names 11 blocks, but 13 tokens",
        ),
        ([HEADER, {**LINE, "output_length": None}], [], "line 2: output_length must be a whole number"),
        ([HEADER], [], "it holds no request"),
        ([HEADER, {**LINE, "input_length": 3, "hash_ids": []}], [], "no request has a block"),
    ],
)
def test_a_recording_that_cannot_be_replayed_is_one_line(
    tmp_path: Path, lines: list[Any], flags: list[str], reason: str
) -> None:
    done = run(write(tmp_path, *lines), "--policy", "lru", *flags)
    assert done.exit_code == 1
    assert reason in done.stderr
    assert done.stderr.splitlines()[-1].startswith("prefixd: ")
