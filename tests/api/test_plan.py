"""``prefixd plan``: what is expected on paper, and how it is asked, shown and written."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from api.cli import build_cli
from api.plan.amounts import parse_count, parse_line, parse_rate, parse_seconds
from api.plan.outlook import Server, outlook, usual_lengths
from api.plan.presets import DEVICES, LINKS, UTILISATION
from api.plan.shape import ModelShape, shape_of
from api.plan.speed import Speed, compute_cost, device_speed, measured_speed
from kvstore.errors import ConfigError
from policies.cost_model import ComputeCost, LoadCost, Work

REPOSITORY = Path(__file__).parents[2]
EIGHT_BILLION = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
SHAPE = shape_of("Llama-3.1-8B", EIGHT_BILLION, {})
FLAGS = ("--layers", "32", "--heads", "32", "--kv-heads", "8", "--head-dim", "128", "--parameters", "7B")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "Llama-3.1-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(EIGHT_BILLION))
    return folder


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(build_cli(), ["plan", *map(str, arguments)])


def server(compute: ComputeCost) -> Server:
    return Server(compute, chunk_tokens=512, block_tokens=16, token_bytes=1000)


def test_a_shape_counts_what_a_tokens_prefill_meets_and_keeps() -> None:
    assert SHAPE.token_bytes == 32 * 2 * 8 * 128 * 2
    # 8.03e9 in all; the embedding and the output layer hold 128,256 x 4,096 each.
    assert pytest.approx(8.03e9 - 2 * 128_256 * 4096, rel=0.001) == SHAPE.parameters
    assert SHAPE.weight_bytes == 2 * SHAPE.parameters
    assert SHAPE.pair_flops == 4 * 32 * 32 * 128


def test_what_is_given_counts_instead_of_the_configuration() -> None:
    given = {"num_key_value_heads": 32, "kv_dtype": "fp8", "parameters": 1e9, "head_dim": None}
    shape = shape_of("mine", EIGHT_BILLION, given)
    assert (shape.num_kv_heads, shape.kv_dtype, shape.parameters) == (32, "fp8", 1e9)
    assert shape.token_bytes == 32 * 2 * 32 * 128


@pytest.mark.parametrize(
    ("config", "given", "setting"),
    [
        ({}, {"num_attention_heads": 8}, "head_dim"),
        ({}, {"num_attention_heads": 8, "head_dim": 64}, "parameters"),
        ({**EIGHT_BILLION, "num_experts": 8}, {}, "parameters"),
        ({**EIGHT_BILLION, "num_attention_heads": "many"}, {}, "heads"),
        ({**EIGHT_BILLION, "kv_lora_rank": 512}, {}, "model"),
        ({**EIGHT_BILLION, "sliding_window": 4096}, {}, "model"),
        ({**EIGHT_BILLION, "sliding_window": 4096, "layer_types": None}, {}, "model"),
        (EIGHT_BILLION, {"kv_dtype": "int3"}, "kv_dtype"),
        (EIGHT_BILLION, {"head_dim": 0}, "head_dim"),
        (EIGHT_BILLION, {"num_key_value_heads": 0}, "kv_heads"),
        (EIGHT_BILLION, {"num_key_value_heads": 5}, "kv_heads"),
        (EIGHT_BILLION, {"num_hidden_layers": 10**400}, "layers"),
        ({**EIGHT_BILLION, "head_dim": [128]}, {}, "head_dim"),
        ({**EIGHT_BILLION, "num_hidden_layers": True}, {}, "layers"),
        *(
            ({**EIGHT_BILLION, "max_position_embeddings": tokens}, {}, "model")
            for tokens in ("many", -4, 0, math.inf)
        ),
    ],
)
def test_a_shape_that_cannot_be_known_is_refused(
    config: dict[str, Any], given: dict[str, Any], setting: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        shape_of("refused", config, given)
    assert refused.value.setting == setting


@pytest.mark.parametrize(
    "fields",
    [
        {"sliding_window": 4096, "use_sliding_window": False},
        {"sliding_window": 4096, "layer_types": ["full_attention"] * 32},
        {"sliding_window": 262_144, "max_position_embeddings": 131_072},
        {"sliding_window": None},
    ],
)
def test_a_window_that_hides_nothing_is_no_reason_to_refuse(fields: dict[str, Any]) -> None:
    assert shape_of("wide", {**EIGHT_BILLION, **fields}, {}).token_bytes == SHAPE.token_bytes


def test_who_has_a_window_hears_how_to_ask_for_a_bound() -> None:
    layers = ["sliding_attention", "full_attention"] * 16
    with pytest.raises(ConfigError, match="give --layers, --heads and the rest instead"):
        shape_of("gemma", {**EIGHT_BILLION, "sliding_window": 4096, "layer_types": layers}, {})


def test_the_h100_takes_as_long_as_was_reported_of_one() -> None:
    cost = compute_cost(SHAPE, device_speed(DEVICES["H100"], UTILISATION), 2048)
    assert cost.prefill_s(0, 20_000, 2048) == pytest.approx(0.9, rel=0.05)


def test_a_step_takes_as_long_as_its_operations_or_as_reading_the_weights() -> None:
    shape = ModelShape("tiny", 1, 1, 1, 64, "bfloat16", parameters=1e6, weight_bytes=2e6, context_tokens=99)
    large, small = (compute_cost(shape, Speed(1e12, 1e9), chunk) for chunk in (4096, 128))
    assert large.of(Work.prefill(0, 4096)) == pytest.approx(4096 * 2e6 / 1e12, rel=0.5)
    assert large.of(Work(0, 0.0)) == pytest.approx(2e6 / 1e9)
    assert small.of(Work(128, 0.0)) == pytest.approx(2e6 / 1e9)


def test_a_rate_that_was_measured_is_met_by_the_first_chunk() -> None:
    cost = compute_cost(SHAPE, measured_speed(1000.0, SHAPE, 512), 512)
    assert cost.prefill_s(0, 512, 512) == pytest.approx(0.512)
    assert cost.prefill_s(0, 8192, 512) > 8.192


def test_at_break_even_loading_takes_as_long_as_computing_and_both_about_half() -> None:
    compute = ComputeCost(step_s=1e-3, token_s=1e-3, attended_s=1e-7)
    latency_s = 0.1
    (slow,) = outlook(server(compute), {"any": LoadCost(latency_s, 1.0)}, [2048])
    rate = slow.tiers["any"].break_even_bytes_per_s
    assert rate is not None
    assert rate > (slow.break_even_bytes_per_s or math.inf)
    (even,) = outlook(server(compute), {"any": LoadCost(latency_s, rate)}, [2048])
    outcome = even.tiers["any"]
    assert outcome.load_s == pytest.approx(outcome.compute_s)
    assert 0.5 < outcome.of_better < 0.6
    assert outcome.computed_tokens + outcome.loaded_tokens == 2048
    assert outcome.reason.startswith("both at once")


def test_no_rate_breaks_even_with_a_latency_that_outlasts_computing() -> None:
    (length,) = outlook(server(ComputeCost(0.0, 1e-4, 0.0)), {"far": LoadCost(1.0, 1e12)}, [512])
    assert length.tiers["far"].break_even_bytes_per_s is None
    assert length.tiers["far"].loaded_tokens == 0
    assert length.tiers["far"].both_s == pytest.approx(length.compute_s)


def test_a_prompt_shorter_than_a_block_has_nothing_to_load() -> None:
    (length,) = outlook(server(ComputeCost(0.0, 1e-4, 0.0)), {"near": LoadCost(0.0, 1e12)}, [15])
    assert (length.break_even_bytes_per_s, length.tiers["near"].loaded_tokens) == (None, 0)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("device", DEVICES)
def test_what_is_planned_is_never_slower_than_either_alone(link: str, device: str) -> None:
    compute = compute_cost(SHAPE, device_speed(DEVICES[device], UTILISATION), 2048)
    asked = Server(compute, 2048, 16, SHAPE.token_bytes)
    for length in outlook(asked, {link: LINKS[link].cost}, usual_lengths(32_768)):
        assert length.tiers[link].of_better <= 1 + 1e-9
        assert length.tiers[link].compute_s == pytest.approx(length.compute_s)


def test_lengths_double_up_to_the_context() -> None:
    assert usual_lengths(1000) == [128, 256, 512, 1000]
    assert usual_lengths(1024) == [128, 256, 512, 1024]
    assert usual_lengths(100) == [100]


def test_amounts_are_written_as_people_write_them() -> None:
    assert parse_line("1.2GB/s,2ms") == LoadCost(0.002, 1.2e9)
    assert parse_line("3e9") == LoadCost(0.0, 3e9)
    assert [parse_rate(text) for text in ("25Gbit/s", "100 MB/s", "8kB")] == [25e9 / 8, 1e8, 8e3]
    assert [parse_seconds(text) for text in ("250us", "0.5ms", "2", "2s", "0")] == [
        2.5e-4,
        5e-4,
        2.0,
        2.0,
        0.0,
    ]
    assert [parse_count(text) for text in ("8B", "135M", "8.03e9")] == [8e9, 135e6, 8.03e9]


@pytest.mark.parametrize("text", ["", "fast", "-1", "0", "1e999", "1GB/s,soon", "1GB/s,-1", "1GB/s,1e999"])
def test_a_line_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is written like"):
        parse_line(text)


def test_the_example_of_the_documentation_is_what_the_command_prints(model: Path) -> None:
    page = (REPOSITORY / "docs" / "planning.md").read_text()
    example = re.search(
        r"^\$ prefixd plan --model \S+ (.*) --plot plan.png\n(.*?)^```$", page, re.MULTILINE | re.DOTALL
    )
    assert example is not None
    result = run("--model", model, *example[1].split())
    assert result.exit_code == 0, result.output
    assert result.stdout == example[2]


def test_without_a_tier_presets_are_compared_and_flags_stand_for_a_model() -> None:
    result = run(*FLAGS, "--device", "h200", "--lengths", "4096,512")
    assert result.exit_code == 0, result.output
    header, *rows = result.stdout.splitlines()[-3:]
    assert header.split() == ["prompt", "computed", "break-even", "host", "nvme", "net-100g", "net-25g"]
    assert [row.split()[0] for row in rows] == ["512", "4096"]
    assert "H200, 43% of 989 TFLOPS" in result.stdout


def test_the_report_has_every_number_with_its_unit(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    tier = ("--tier", "nfs=200MB/s,2ms", "--tier", "redis")
    result = run(*FLAGS, "--prefill-tok-s", "1000", "--lengths", "2048", *tier, "--json", file)
    assert result.exit_code == 0, result.output
    report = json.loads(file.read_text())
    assert report["model"]["token_bytes"] == 131072
    assert report["tiers"]["nfs"] == {"what": "as given", "latency_s": 0.002, "bytes_per_s": 2e8}
    (length,) = report["lengths"]
    assert length["ttft_computed_s"] == pytest.approx(2.048)
    nfs = length["tiers"]["nfs"]
    assert nfs["computed_tokens"] + nfs["loaded_tokens"] == 2048
    assert nfs["ttft_both_s"] < min(nfs["ttft_loaded_s"], length["ttft_computed_s"])
    # Loading 2,048 tokens of 128 KiB as quickly as computing them, in two seconds and a little.
    assert length["break_even_bytes_per_s"] == pytest.approx(2048 * 131072 / 2.048, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "heads: is not known: give --model DIR or --heads"),
        (("--model", "none"), "model: none cannot be read: No such file or directory"),
        ((*FLAGS, "--parameters", "some"), "parameters: some: a number is written like 8B"),
        ((*FLAGS, "--device", "abacus"), "device: abacus is not one of H100, H200; or give --prefill-tok-s"),
        ((*FLAGS, "--utilisation", "2"), "utilisation: 2 is no share of a peak"),
        ((*FLAGS, "--utilisation", "0.5", "--prefill-tok-s", "9"), "utilisation: says the same as"),
        ((*FLAGS, "--tier", "pigeon"), "tier: pigeon is neither name=rate,latency"),
        ((*FLAGS, "--tier", "nfs=fast"), "tier: fast: a rate is written like"),
        ((*FLAGS, "--lengths", "12,x"), "lengths: 12,x is no list of lengths"),
        ((*FLAGS, "--lengths", "0"), "lengths: 0: each is between 1 and"),
        ((*FLAGS, "--json", "nowhere/plan.json"), "json: nowhere/plan.json cannot be written"),
        ((*FLAGS, "--plot", "plan.txt"), "plot: plan.txt ends in neither .png nor .svg nor .pdf"),
        (
            (*FLAGS, "--lengths", "9", "--plot", "nowhere/plan.png"),
            "plot: nowhere/plan.png cannot be written",
        ),
    ],
)
def test_what_cannot_be_planned_is_one_line_and_code_2(arguments: tuple[str, ...], line: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"prefixd: {line}"), result.stderr
    assert result.stderr.count("\n") == 1


def test_a_rate_of_no_machine_is_refused() -> None:
    for rate in ("inf", "1e308", "nan"):
        assert run(*FLAGS, "--prefill-tok-s", rate).exit_code == 2


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_figure_is_drawn(suffix: str, begins: bytes, tmp_path: Path) -> None:
    file = tmp_path / f"plan.{suffix}"
    result = run(*FLAGS, "--lengths", "512,2048", "--tier", "nvme", "--plot", file)
    assert result.exit_code == 0, result.output
    assert file.read_bytes().startswith(begins)


def test_a_figure_has_units_and_a_legend_and_a_panel_for_each_tier(tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    assert (
        run(*FLAGS, "--tier", "nvme", "--tier", "redis", "--lengths", "512,2048", "--plot", file).exit_code
        == 0
    )
    drawn = file.read_text()
    for text in (
        "time to first token",
        "prompt tokens",
        "computed only",
        "loaded only",
        "nvme: ",
        "redis: ",
        " ms<",
    ):
        assert text in drawn, text


def test_without_matplotlib_the_rest_works_and_a_figure_names_the_extra(tmp_path: Path) -> None:
    program = "import sys; sys.modules['matplotlib'] = None; from prefixd import main; main()"
    command = [sys.executable, "-c", program, "plan", *FLAGS, "--lengths", "512"]
    plain, drawn = (
        subprocess.run([*command, *more], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        for more in ((), ("--plot", str(tmp_path / "plan.png")))
    )
    assert (plain.returncode, plain.stderr) == (0, "")
    assert (drawn.returncode, drawn.stdout) == (1, "")
    assert drawn.stderr == "prefixd: matplotlib is not installed: pip install 'prefixd[plot]'\n"
