"""What the tests of the vLLM connector share. ``make test-vllm`` runs them beside vLLM."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.engines.vllm.tiny_model import write_tiny_model

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("script.py")
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING",
    "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
}  # fmt: skip

Run = Callable[..., list[Any]]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def run_vllm(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run vLLM in a new process: what it answered, action by action."""
    folder = tmp_path_factory.mktemp("answers")

    def run(
        do: Sequence[dict[str, Any]],
        connector: dict[str, Any] | None = None,
        *,
        events: str = "",
        **options: Any,
    ) -> list[Any]:
        out = folder / f"{len(list(folder.iterdir()))}.json"
        told = {
            "model": str(model), "do": list(do), "connector": connector, "options": options,
            "out": str(out), "events": events,
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, str(SCRIPT)], input=json.dumps(told), text=True, env=os.environ | ENVIRONMENT,
            capture_output=True, timeout=500, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        answers: list[Any] = json.loads(out.read_text(encoding="utf-8"))
        return answers

    return run


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Three prompts; the third begins as the first does."""
    numbers = random.Random(7)
    first, second, rest = ([numbers.randrange(3, 512) for _ in range(num)] for num in (1000, 500, 200))
    return [first, second, first[:800] + rest]


@pytest.fixture
def own_store(tmp_path: Path) -> dict[str, Any]:
    """A connector's settings: a store that outlives the process."""
    return {
        "host_bytes": 256 << 20, "disk_bytes": 1 << 30, "disk_path": str(tmp_path / "blocks"),
        "cache_path": str(tmp_path / "cache"),
    }  # fmt: skip
