from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines.lmcache.conftest import ENVIRONMENT
from tests.valkey import Valkey

pytestmark = pytest.mark.timeout(300)  # LMCache takes its time to start

_LMCACHE = str(Path(sys.executable).with_name("lmcache"))


Specs = dict[str, str]


@pytest.fixture
def specs(tmp_path: Path, sidecar: str, valkey: Valkey) -> Specs:
    """Our adapter with each kind of store, as LMCache's command line takes it."""
    kinds: dict[str, dict[str, Any]] = {
        "memory and disk": {"disk_bytes": 1 << 30, "disk_path": str(tmp_path / "both")},
        "disk": {"host_bytes": 0, "disk_bytes": 1 << 30, "disk_path": str(tmp_path / "one")},
        "redis": {"host_bytes": 0, "redis_url": valkey.url},
        "sidecar": {"store": sidecar},
    }
    plugin = {
        "type": "plugin", "module_path": "engine_adapter.lmcache", "class_name": "PrefixdL2Adapter"
    }  # fmt: skip
    return {kind: json.dumps(plugin | {"adapter_params": params}) for kind, params in kinds.items()}


def test_basic_check(specs: Specs) -> None:
    adapters = [word for spec in specs.values() for word in ("--l2-adapter", spec)]
    told = _told(
        sys.executable, "-m", "lmcache.v1.basic_check", "--mode", "test_l2_adapter", "--num-keys", "16",
        "--obj-size", "65536", *adapters,
    )  # fmt: skip
    rows = [line for line in told.splitlines() if line.startswith("| ") and "Operation" not in line]
    assert len(rows) == 4 * len(specs), told
    assert all("16/16" in row for row in rows), told
    assert "mismatch" not in told


@pytest.mark.parametrize(
    ("kind", "kilobytes"),
    [("memory and disk", "64"), ("disk", "2048"), ("redis", "2048"), ("sidecar", "2048")],
)
def test_bench_with_verification(specs: Specs, kind: str, kilobytes: str) -> None:
    told = _told(
        _LMCACHE, "bench", "l2", "--l2-adapter", specs[kind], "--num-keys", "4", "--data-size-kb", kilobytes,
        "--rounds", "3", "--in-flight", "2", "--no-skip-verify", "--lookup-max-hit-rate", "0.5",
    )  # fmt: skip
    late = [line.split()[-1] for line in told.splitlines() if line.startswith("Rounds timed out")]
    # Its lookups name a layout that no object of its own has, so that none must be found.
    stored, found, loaded = (
        line.split()[-1] for line in told.splitlines() if line.startswith("Total success")
    )
    assert late == ["0"] * 3, told
    assert (stored, found, loaded) == ("24", "0", "24"), told


def _told(*command: str) -> str:
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout
