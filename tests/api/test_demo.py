import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from api.demo.both import Ways, shown
from api.demo.client import Answer
from api.demo.report import next_commands, table
from api.demo.run import run_demo
from api.demo.scenario import Row, document, faults
from api.demo.server import running_server
from kvstore.errors import ServerFailedError

CLEAN = Answer("Paris.", 2000, 2, {"computed": 2000}, ttft_s=3.0, itl_s=0.03)
CACHED = replace(CLEAN, tokens_by_source={"computed": 16, "device": 1000, "host": 984}, ttft_s=0.05)
COLD = Row("1st question", CLEAN, CLEAN)
WARM = Row("2nd question", CACHED, CLEAN)


def printed(print_to: Callable[[Console], object]) -> str:
    out = io.StringIO()
    print_to(Console(file=out, width=100))
    return out.getvalue()


def test_nothing_is_wrong_when_answers_are_equal_and_later_ones_cached() -> None:
    assert faults([COLD, WARM]) == []


@pytest.mark.parametrize("answer", [replace(CACHED, text="Rome."), replace(CACHED, completion_tokens=3)])
def test_another_answer_than_the_clean_runs_is_wrong(answer: Answer) -> None:
    assert faults([COLD, Row("2nd question", answer, CLEAN)]) == [
        "2nd question: the answer is not the clean run's"
    ]


def test_a_later_answer_that_nothing_was_loaded_for_is_wrong() -> None:
    assert faults([COLD, Row("2nd question", CLEAN, CLEAN)]) == ["2nd question: nothing came from a cache"]


def test_the_table_says_where_the_tokens_came_from_and_what_it_took() -> None:
    shown = printed(lambda console: console.print(table([COLD, WARM])))
    lines = [line.strip() for line in shown.splitlines()]
    assert "prompt  computed  device  host  disk  TTFT  clean  ITL  equal" in lines
    row = next(line for line in lines if line.startswith("2nd question"))
    assert row.split()[2:] == ["2000", "16", "1000", "984", "·", "0.05", "3.00", "30", "yes"]


def test_the_bars_are_as_long_as_their_seconds_over_one_axis() -> None:
    ways = Ways(1024, 36e6, {"compute": 1.2, "load": 1.5, "both": 0.75}, "both at once: for a reason", True)
    title, _, compute, load, both, marks, seconds, _, reason = shown(ways).splitlines()
    assert title.endswith("1024 tokens on a tier throttled to break-even, 36 MB/s:")
    assert [line.split()[0] for line in (compute, load, both)] == ["compute", "load", "both"]
    assert [line.count("█") for line in (compute, load, both)] == [38, 48, 24]
    assert [line.split()[-2:] for line in (compute, both)] == [["1.20", "s"], ["0.75", "s"]]
    assert [load.rindex("█"), marks.rindex("┴"), seconds.index("1.50")] == [56, 57, 57]
    assert reason == "both at once: for a reason"


def test_the_first_command_to_try_next_is_for_the_users_own_model() -> None:
    first, *others = next_commands(Path("a model"))
    assert first == "prefixd serve --model /path/to/your/model"
    assert len(others) == 2
    assert all("--model 'a model'" in command for command in others)
    assert "--model ~/'a model'" in next_commands(Path.home() / "a model")[1]


def test_a_server_that_cannot_start_is_told_with_its_log(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerFailedError, match=r"(?s)ended with code.*no-such-model"),
        running_server(["--model", str(tmp_path / "no-such-model")], tmp_path / "log"),
    ):
        pass


@pytest.mark.timeout(400)
def test_the_demo_shows_a_long_document_answered_from_every_tier(smollm2: Path) -> None:
    assert len(document().split()) > 1500
    out = io.StringIO()
    assert run_demo(Console(file=out, width=100)), out.getvalue()

    rows = [line.split()[-9:] for line in out.getvalue().splitlines() if line.rstrip().endswith("yes")]
    tokens = [[int(cell) if cell != "·" else 0 for cell in row[:5]] for row in rows]
    first, second, third, *restarted = tokens
    assert all(prompt == sum(sources) >= 1800 for prompt, *sources in tokens)
    assert first == [first[0], first[0], 0, 0, 0]
    _, computed, device, host, disk = second
    assert (device >= 1800, computed < 100, host, disk) == (True, True, 0, 0)
    _, computed, device, host, disk = third
    assert (host >= 1500, computed < 100, disk) == (True, True, 0)
    assert restarted[0][4] >= 1800
    assert [row[2] >= 1800 for row in restarted] == [False, True, True]
    bars = [line.split()[0] for line in out.getvalue().splitlines() if "█" in line]
    assert bars == ["compute", "load", "both"]
    assert "both at once: " in out.getvalue()
    assert out.getvalue().count(f"/{smollm2.name}") == 2
