"""What ``prefixd bench`` writes is scripted by others: every key is there, and holds a measurement."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from api.cli import build_cli

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
