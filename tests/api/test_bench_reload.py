"""The plan, the statistics and the marks of ``prefixd bench reload``, and one small run of it all."""

import json
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest
from typer.testing import CliRunner

from api.bench.reload_line import Bench, FixedSplit, LeapingClock, Line, Speed, Switch, policy_of
from api.bench.reload_marks import Findings, State, marks_of, report_of
from api.bench.reload_plan import (
    FULL_CELLS,
    LEAST_REQUESTS,
    NAMED_ARMS,
    QUICK_CELLS,
    Arm,
    Cell,
    Known,
    Trouble,
    arms_of,
    best_share,
    num_requests,
    predicted_s,
    round_s,
    rounds_of,
    runs_of,
    trouble_share,
)
from api.bench.reload_statistics import BEST, CellSamples, Sample, mean_of, p99_over, percentile, ratio
from api.cli import build_cli
from backends.disk import DiskBackend
from kvstore.seams import Streaming, Want
from policies.cost_model import ComputeCost, LoadCost
from policies.planning import READY, Choice, PlanRequest
from policies.reload import Static

KNOWN = Known({512: 0.6, 2048: 3.0}, {512: 30.0, 2048: 40.0}, deadline_s=10.0)
EVEN = Cell(512, 1.0, 0.0)


def test_the_best_share_on_paper_lets_both_end_together() -> None:
    assert best_share(EVEN, KNOWN) == 0.5
    assert best_share(replace(EVEN, rate=3.0), KNOWN) == 0.25
    assert best_share(replace(EVEN, latency_s=0.3), KNOWN) == 0.75
    assert best_share(replace(EVEN, rate=None), KNOWN) < 0.05
    assert predicted_s(EVEN, Arm("measured"), KNOWN) == pytest.approx(0.3)


def test_trouble_comes_half_way_through_the_best_split() -> None:
    stalls = replace(EVEN, trouble=Trouble.STALLS)
    assert trouble_share(stalls, KNOWN) == 0.25
    assert best_share(stalls, KNOWN) == 0.75
    assert predicted_s(stalls, Arm("always-load"), KNOWN) == pytest.approx(0.15 + 10 + 0.45)
    slows = replace(EVEN, trouble=Trouble.SLOWS)
    assert predicted_s(slows, Arm("always-load"), KNOWN) == pytest.approx(0.15 + 4.5)


@pytest.mark.parametrize("cell", FULL_CELLS)
def test_fixed_splits_lie_around_the_best_and_none_is_hopeless(cell: Cell) -> None:
    fixed = [arm for arm in arms_of(cell, KNOWN) if arm.computed_share is not None]
    compute_s = predicted_s(cell, Arm("always-compute"), KNOWN)
    assert fixed
    assert all(predicted_s(cell, arm, KNOWN) <= 2.5 * compute_s for arm in fixed)
    assert min(predicted_s(cell, arm, KNOWN) for arm in fixed) <= compute_s


@pytest.mark.parametrize("slower", [1.0, 1.5])
def test_a_full_run_keeps_within_its_time_and_makes_enough_requests(slower: float) -> None:
    known = replace(KNOWN, compute_s={tokens: slower * s for tokens, s in KNOWN.compute_s.items()})
    rounds = rounds_of(FULL_CELLS, known, 2400, LEAST_REQUESTS)
    assert sum(num * round_s(cell, known) for cell, num in rounds.items()) <= 2400
    assert num_requests(rounds) >= LEAST_REQUESTS
    assert all(num % 2 == 0 for num in rounds.values())


def test_too_little_time_costs_requests_only_down_to_the_least() -> None:
    assert set(rounds_of(QUICK_CELLS, KNOWN, 0.0).values()) == {2}
    assert set(rounds_of(QUICK_CELLS, KNOWN, 1e6, most_rounds=6).values()) == {6}
    assert LEAST_REQUESTS <= num_requests(rounds_of(FULL_CELLS, KNOWN, 0.0, LEAST_REQUESTS)) < 260


def test_every_arm_comes_as_early_as_late_and_hopeless_ones_less_often() -> None:
    cell, rounds = Cell(512, 0.1, 0.02), 12
    runs = list(runs_of(cell, KNOWN, rounds, random.Random(1)))
    by_round = [[arm.name for number, arm in runs if number == wanted] for wanted in range(1, rounds + 1)]
    assert all(odd == even[::-1] for odd, even in zip(by_round[::2], by_round[1::2], strict=True))
    assert by_round[0] != by_round[2]
    counts = Counter(arm.name for _, arm in runs)
    assert counts.pop("always-load") == 4
    assert set(counts.values()) == {rounds}


def sample(number: int, *ttft_s: float, tok_s: float = 10.0) -> Sample:
    return Sample(number, ttft_s, tok_s)


def steady(ttft_s: float, rounds: int = 8, tok_s: float = 10.0) -> list[Sample]:
    return [sample(number, ttft_s * (1 + number % 3 / 100), tok_s=tok_s) for number in range(1, rounds + 1)]


def cell_samples(cell: Cell = EVEN, **ttft_s: float) -> CellSamples:
    usual = dict.fromkeys(NAMED_ARMS, 1.0) | {"half": 0.6}
    by_name = usual | {name.replace("_", "-"): value for name, value in ttft_s.items()}
    return CellSamples(cell, 1.0, 1e6, frozenset({"half"}), {name: steady(s) for name, s in by_name.items()})


def test_the_best_fixed_split_is_chosen_on_odd_rounds_and_scored_on_even_ones() -> None:
    samples = CellSamples(EVEN, 1.0, 1e6, frozenset({"a", "b"}))
    for number in range(1, 5):
        samples.add("a", sample(number, 1.0 if number % 2 else 3.0))
        samples.add("b", sample(number, 2.0))
        samples.add("always-compute", sample(number, 4.0))
    name, runs = samples.best_fixed()
    assert (name, [run.mean_s for run in runs]) == ("a", [3.0, 3.0])
    assert set(samples.runs()) == {"always-compute", BEST}


def test_loading_or_computing_everything_are_fixed_splits_too() -> None:
    assert cell_samples(always_compute=0.3).best_fixed()[0] == "always-compute"
    assert cell_samples(measured=0.1, static=0.1).best_fixed()[0] == "half"


def test_an_interval_holds_the_ratio_and_widens_with_noise() -> None:
    found = ratio(steady(0.9), steady(1.0))
    assert found.low < found.value < found.high
    assert found.value == pytest.approx(0.9, abs=0.01)
    noisy = ratio([sample(n, 0.5 if n % 2 else 1.5) for n in range(1, 9)], steady(1.0))
    assert noisy.high - noisy.low > 10 * (found.high - found.low)
    assert mean_of([(steady(0.9), steady(1.0)), (steady(1.1), steady(1.0))]).value == pytest.approx(1.0)


def test_the_pooled_percentile_counts_each_request_in_terms_of_its_cell_and_place_in_the_batch() -> None:
    batch = {"a": [sample(1, 1.0, 2.0), sample(2, 2.0, 1.0)], "b": [sample(1, 2.0, 4.0)]}
    assert p99_over([batch], "b", "a") == (2.0, 2)
    other = {"a": [sample(1, 100.0)], "b": [sample(1, 100.0)]}
    assert p99_over([batch, other], "b", "a") == (2.0, 3)
    assert percentile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0


def states(*cells: CellSamples, tokens_equal: bool = True) -> dict[str, State]:
    return {mark.name: mark.state for mark in marks_of(Findings(cells, tokens_equal))}


def test_all_marks_are_met_when_measured_costs_are_as_good_as_the_best() -> None:
    batch = cell_samples(replace(EVEN, concurrency=8), measured=0.6)
    batch.by_arm["measured"] = steady(0.6, tok_s=11.0)
    assert set(states(cell_samples(measured=0.6), batch).values()) == {State.MET}


@pytest.mark.parametrize(
    ("found", "missed"),
    [
        ({"measured": 0.66}, {"mean regret", "both over the better one at break-even"}),
        (
            {"measured": 1.2},
            {
                "mean regret",
                "worst cell's regret",
                "p99 over always-compute",
                "TTFT over static",
                "TTFT over timeout",
                "both over the better one at break-even",
            },
        ),
        ({"measured": 0.6, "static": 0.5}, {"TTFT over static"}),
        ({"measured": 0.6, "timeout": 0.5}, {"TTFT over timeout"}),
    ],
)
def test_a_mark_that_is_missed_is_told(found: dict[str, float], missed: set[str]) -> None:
    marks = states(cell_samples(EVEN, **found))
    assert {name for name, state in marks.items() if state is State.MISSED} == missed


def test_another_answer_or_fewer_tokens_a_second_miss_their_marks() -> None:
    assert states(cell_samples(), tokens_equal=False)["every answer is the clean run's"] is State.MISSED
    batch = cell_samples(replace(EVEN, concurrency=8))
    batch.by_arm["timeout"] = steady(1.0, tok_s=20.0)
    assert states(batch)["tokens a second, over timeout"] is State.MISSED


def test_a_mark_within_the_interval_is_open() -> None:
    noisy = cell_samples()
    noisy.by_arm["measured"] = [sample(n, 0.3 if n % 2 else 0.95) for n in range(1, 9)]
    assert states(noisy)["mean regret"] is State.OPEN


def test_a_fixed_split_computes_its_share_and_what_no_tier_has() -> None:
    request = PlanRequest(
        tiers=["disk", READY, "disk", None, "disk", "disk", "disk", "disk"],
        prompt_tokens=130,
        block_tokens=16,
        block_bytes=1000,
        compute=ComputeCost(0.01, 0.001, 0.0),
        loads={"disk": LoadCost(0.001, 1e6)},
        chunk_tokens=512,
    )
    plan = FixedSplit(0.25).plan(request)
    choices = {Choice.COMPUTE: "c", Choice.LOAD: "l"}
    assert "".join(choices[choice] for choice in plan.choices) == "cllcllll"
    assert plan.prediction.if_computed_s > plan.prediction.load_s


def test_a_line_that_stalls_holds_reads_after_some_until_it_is_settled(tmp_path: Path) -> None:
    line = Line(DiskBackend(tmp_path))
    line.set(Speed(1e9, 0.0, Trouble.STALLS, trouble_after=1))
    header, payload = memoryview(bytearray(256)), memoryview(bytearray(4096))
    assert line.get_into(b"k" * 16, header, payload) is None
    done = Event()

    def read() -> None:
        line.get_into(b"k" * 16, header, payload)
        done.set()

    reader = Thread(target=read)
    reader.start()
    assert not done.wait(0.05)
    line.settle()
    reader.join(5.0)
    assert done.is_set()
    line.set(None)
    assert line.get_into(b"k" * 16, header, payload) is None


def test_a_line_reads_in_exchanges_so_that_latency_is_paid_once_for_many(tmp_path: Path) -> None:
    line = Line(DiskBackend(tmp_path))
    wants = [Want(bytes([n]) * 16, memoryview(bytearray(256)), memoryview(bytearray(64))) for n in range(4)]
    assert isinstance(line, Streaming)
    line.set(Speed(1e9, 0.0, Trouble.STALLS, trouble_after=3))
    answers = line.get_each(wants)
    assert [next(answers) for _ in range(3)] == [None, None, None]
    settling = Thread(target=line.settle)
    settling.start()
    assert list(answers) == [None]
    settling.join(5.0)
    assert not settling.is_alive()


def test_arms_are_policies_of_the_registry_or_fixed_splits() -> None:
    registry = Bench(Switch()).registry()
    assert policy_of(Arm("computes half", 0.5), registry) == FixedSplit(0.5)
    assert isinstance(policy_of(Arm("static"), registry), Static)


def test_a_leaping_clock_goes_on_from_where_it_leapt_to() -> None:
    clock = LeapingClock(lambda: 100.0)
    clock.leap(6.0)
    assert clock.clock().monotonic_s() == 106.0


@pytest.mark.timeout(300)
def test_bench_reload_reports_every_cell_with_a_tiny_model(model_folder: Path, tmp_path: Path) -> None:
    model = shutil.copytree(model_folder, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2048}))
    file = tmp_path / "report.json"
    command = ["bench", "reload", "--quick", "--plans", "--model", str(model), "--json", str(file)]
    settings = ["--device-bytes", "16MiB", "--disk-path", str(tmp_path / "blocks"), "--load-deadline-s", "1"]
    result = CliRunner().invoke(build_cli(), [*command, *settings])
    assert result.exit_code == 0, result.output
    report = json.loads(file.read_text())
    assert report["tokens_equal"] is True
    assert report["break_even_bytes_per_s"] > 0
    assert {"mean_regret", "p99_over_compute", "split_over_best_single_at_break_even"} <= set(report)
    assert [(cell["rate_over_break_even"], cell["trouble"]) for cell in report["cells"]] == [
        (10.0, "none"), (1.0, "none"), (1.0, "stalls"), (0.1, "none"),
    ]  # fmt: skip
    for cell in report["cells"]:
        assert (cell["prompt_tokens"], cell["latency_s"], cell["concurrency"]) == (512, 0.02, 1)
        assert cell["samples"] >= 2
        for figure in ("ttft_mean_s", "ttft_worst_s", "tok_s"):
            assert set(cell[figure]) == {*NAMED_ARMS, BEST}
            assert all(value > 0 for value in cell[figure].values())
    stalled = report["cells"][2]["ttft_mean_s"]
    assert stalled["always-load"] > 1.0
    assert stalled["measured"] < 1.0
    assert "every answer is the clean run's: true" in result.stderr
    assert not list((tmp_path / "blocks").iterdir())


def test_a_report_names_each_policys_samples() -> None:
    report = report_of(Findings([cell_samples(measured=0.6)], tokens_equal=True))
    assert report["cells"][0]["samples_by_arm"] == {**dict.fromkeys(NAMED_ARMS, 8), BEST: 4}
    assert report["mean_regret"] == pytest.approx(0.0, abs=0.02)
