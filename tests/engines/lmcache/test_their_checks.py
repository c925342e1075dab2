from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines.lmcache.conftest import ENVIRONMENT

_LMCACHE = str(Path(sys.executable).with_name("lmcache"))


@pytest.fixture(params=["memory and disk", "disk", "sidecar"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    params: dict[str, Any] = {"disk_bytes": 1 << 30, "disk_path": str(tmp_path / "blocks")}
    if request.param == "sidecar":
        params = {"store": request.getfixturevalue("sidecar")}
    elif request.param == "disk":
        params["host_bytes"] = 0
    return json.dumps(
        {
            "type": "plugin",
            "module_path": "engine_adapter.lmcache",
            "class_name": "PrefixdL2Adapter",
            "adapter_params": params,
        }
    )


def test_basic_check(spec: str) -> None:
    told = _told(
        sys.executable, "-m", "lmcache.v1.basic_check", "--mode", "test_l2_adapter", "--num-keys", "16",
        "--obj-size", "65536", "--l2-adapter", spec,
    )  # fmt: skip
    rows = [line for line in told.splitlines() if line.startswith("| ") and "Operation" not in line]
    assert len(rows) == 4, told
    assert all("16/16" in row for row in rows), told
    assert "mismatch" not in told


@pytest.mark.parametrize("shape", [("64", "2"), ("2048", "4")], ids=["64 KiB", "2 MiB"])
def test_bench_with_verification(spec: str, shape: tuple[str, str]) -> None:
    kilobytes, rounds = shape
    told = _told(
        _LMCACHE, "bench", "l2", "--l2-adapter", spec, "--num-keys", "4", "--data-size-kb", kilobytes,
        "--rounds", rounds, "--in-flight", "2", "--no-skip-verify", "--lookup-max-hit-rate", "0.5",
    )  # fmt: skip
    assert "timed out" not in told.replace(
        "Rounds timed out:                                              0", ""
    )
    assert "Total success" in told


def _told(*command: str) -> str:
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout
