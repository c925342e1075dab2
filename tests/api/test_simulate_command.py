"""``prefixd simulate``: what it prints, writes, draws and refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from api.cli import build_cli
from api.simulate.replay import Cell
from api.simulate.report import share_of_the_way
from api.simulate.trace import read_trace

TRACES = Path(__file__).parent / "traces"
CONVERSATION = TRACES / "conversation.jsonl.xz"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(build_cli(), ["simulate", *map(str, arguments)])


def test_every_policy_is_replayed_at_every_capacity(tmp_path: Path) -> None:
    file = tmp_path / "cells.json"
    done = run(CONVERSATION, "--policy", "lru,OPT", "--capacity-blocks", "500,100", "--json", file)
    assert done.exit_code == 0
    assert re.search(r"^conversation: 400 requests in [\d,]+ s, [\d,]+ blocks of 512 tokens", done.stdout)
    written = json.loads(file.read_text())
    assert written["trace"] == "conversation"
    cells = written["cells"]
    assert [(cell["policy"], cell["capacity_blocks"]) for cell in cells] == [
        ("lru", 100), ("lru", 500), ("OPT", 100), ("OPT", 500),
    ]  # fmt: skip
    for cell in cells:
        assert set(cell) == {
            "policy", "capacity_blocks", "token_hit_ratio", "block_hit_ratio", "mean_blocks", "seconds",
        }  # fmt: skip
        assert f"{cell['token_hit_ratio']:.2%}" in done.stdout


def test_a_rate_turns_hits_into_seconds(tmp_path: Path) -> None:
    file = tmp_path / "cells.json"
    flags = "--policy", "OPT", "--capacity-blocks", "500", "--prefill-tok-s", "1000", "--json", file
    done = run(CONVERSATION, *flags)
    (cell,) = json.loads(file.read_text())["cells"]
    num_tokens = read_trace(CONVERSATION).num_tokens
    # Of a prompt that is hit as a whole the last token is computed.
    assert cell["saved_s"] == pytest.approx(cell["token_hit_ratio"] * num_tokens / 1000, rel=1e-4)
    assert cell["mean_ttft_s"] * 400 + cell["saved_s"] == pytest.approx(num_tokens / 1000)
    assert f"{cell['saved_s']:.0f} s" in done.stdout


def test_usual_capacities_are_shares_of_the_different_blocks(tmp_path: Path) -> None:
    file = tmp_path / "cells.json"
    assert run(CONVERSATION, "--policy", "OPT", "--json", file).exit_code == 0
    capacities = [cell["capacity_blocks"] for cell in json.loads(file.read_text())["cells"]]
    num_blocks = 5 * capacities[-1]
    assert capacities == [pytest.approx(num_blocks * share, abs=1) for share in (0.01, 0.02, 0.05, 0.1, 0.2)]


def test_blocks_that_are_not_used_again_in_time_make_the_cache_smaller(tmp_path: Path) -> None:
    means = []
    for ttl in ([], ["--ttl", "20"]):
        file = tmp_path / "cells.json"
        assert (
            run(CONVERSATION, "--policy", "lru", "--capacity-blocks", "4000", *ttl, "--json", file).exit_code
            == 0
        )
        means.append(json.loads(file.read_text())["cells"][0]["mean_blocks"])
    assert means[1] < means[0]


def test_a_figure_has_both_bounds(tmp_path: Path) -> None:
    file = tmp_path / "hits.svg"
    assert run(CONVERSATION, "--policy", "lru", "--capacity-blocks", "100,500", "--plot", file).exit_code == 0
    drawn = file.read_text()
    for words in ("capacity (blocks of 512 tokens)", "prompt tokens hit", "OPT", "lru", "conversation"):
        assert words in drawn


def test_the_way_from_lru_to_the_optimum() -> None:
    low, mid, high = (
        Cell(name, 4, hit, 0, 0, 0) for name, hit in (("lru", 0.2), ("mine", 0.3), ("OPT", 0.6))
    )
    assert share_of_the_way(mid, [low, mid, high]) == pytest.approx(0.25)
    assert share_of_the_way(mid, [low, mid]) is None
    assert share_of_the_way(mid, [low, mid, Cell("OPT", 4, 0.2, 0, 0, 0)]) is None


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["--policy", "lru,,OPT"], 2, "policy: 'lru,,OPT' is not a list"),
        (["--policy", "mru"], 2, "eviction 'mru': is not known; there are: "),
        (["--capacity-blocks", "0"], 2, "capacity_blocks: '0' is not a number of blocks"),
        (["--capacity-blocks", "5,x"], 2, "capacity_blocks: 'x' is not a number of blocks"),
        (["--capacity-blocks", "9" * 5000], 2, "is not a number of blocks"),
        (["--capacity-blocks", ""], 2, "capacity_blocks: '' is not a list"),
        (["--ttl", "0"], 2, "ttl: must lie between a millisecond and a century"),
        (["--ttl", "-4"], 2, "ttl: must lie between"),
        (["--ttl", "nan"], 2, "ttl: must lie between"),
        (["--ttl", "3153600001"], 2, "ttl: must lie between"),
        (["--plot", "hits.txt"], 2, "plot: hits.txt ends in neither .png nor .svg nor .pdf"),
        (["--json", "/nowhere/cells.json"], 2, "json: /nowhere/cells.json cannot be written"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(
    arguments: list[str], exit_code: int, message: str
) -> None:
    done = run(CONVERSATION, *arguments)
    assert (done.exit_code, message in done.stderr) == (exit_code, True)
    assert done.stderr.splitlines()[-1].startswith("prefixd: ")
    assert done.stdout == ""


def test_a_broken_line_ends_it_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_text("{}\n")
    done = run(tmp_path / "broken.jsonl")
    assert done.exit_code == 1
    assert "broken.jsonl, line 1: timestamp is missing" in done.stderr


def test_the_help_has_examples() -> None:
    shown = run("--help").stdout
    assert "prefixd simulate conversation_trace.jsonl" in shown
