"""vLLM's OpenAI server with the connector: answers, resets, metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engines.vllm.conftest import ENVIRONMENT
from tests.engines.vllm.test_meaning import IN_MEMORY, WHOLE, free_port

pytestmark = pytest.mark.timeout(900)

START_S = 400.0


@pytest.fixture
def client(model: Path, tmp_path: Path) -> Iterator[httpx.Client]:
    port = free_port()
    transfer = {
        "kv_connector": "PrefixdConnector", "kv_connector_module_path": "engine_adapter.vllm",
        "kv_role": "kv_both", "kv_connector_extra_config": IN_MEMORY | {"cache_path": str(tmp_path)},
    }  # fmt: skip
    words = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model,
        "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", port, "--dtype", "bfloat16",
        "--max-model-len", 2048, "--enforce-eager", "--block-size", 32, "--kv-transfer-config",
        json.dumps(transfer), "--enable-prompt-tokens-details",
    ]  # fmt: skip
    environment = ENVIRONMENT | {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    log = (tmp_path / "server.log").open("w+")
    process = subprocess.Popen(
        [str(word) for word in words], env=os.environ | environment, stdout=log, stderr=log
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False) as opened:
            wait_until_up(opened, process, Path(log.name))
            yield opened
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def wait_until_up(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    ends_s = time.monotonic() + START_S
    while time.monotonic() < ends_s:
        assert process.poll() is None, log.read_text(encoding="utf-8")[-4000:]
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError(log.read_text(encoding="utf-8")[-4000:])


def complete(client: httpx.Client, prompt: list[int]) -> tuple[str, list[float], int]:
    asked = {"model": "tiny", "prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 1,
             "ignore_eos": True}  # fmt: skip
    answer: Any = client.post("/v1/completions", json=asked).raise_for_status().json()
    (choice,) = answer["choices"]
    cached = (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return choice["text"], choice["logprobs"]["token_logprobs"], cached


def reset(client: httpx.Client, **options: Any) -> None:
    client.post("/reset_prefix_cache", params=options).raise_for_status()


def count(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").raise_for_status().text.splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"vllm:prefixd_{name}_total")
    )


def test_the_server_answers_alike_after_a_reset(client: httpx.Client, prompts: list[list[int]]) -> None:
    computed = complete(client, prompts[0])
    own = complete(client, prompts[0])
    reset(client)
    loaded = complete(client, prompts[0])
    assert computed[2] == 0
    assert loaded == own
    assert (computed[0], own[2]) == (own[0], WHOLE)
    assert count(client, "tokens_loaded") == WHOLE
    assert count(client, "blocks_stored") == WHOLE // 32
    assert count(client, "faults") == 0

    reset(client, reset_external="true")
    assert complete(client, prompts[0]) == computed
