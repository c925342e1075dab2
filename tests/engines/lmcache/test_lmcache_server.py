"""LMCache's own server, stored to and restored from by its own client."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
import torch
from lmcache.sdk import context as sdk

from tests.engines.lmcache.conftest import ENVIRONMENT

_LAYERS, _HEADS, _DIM, _ENGINE_BLOCK, _CHUNK = 2, 2, 32, 16, 64
_NUM_CHUNKS = 4
_START_S = 90.0

pytestmark = pytest.mark.timeout(300)  # LMCache's server takes its time to start

TOKENS = list(range(1000, 1000 + _CHUNK * _NUM_CHUNKS))

Serve = Callable[..., Any]


@contextmanager
def _server(folder: Path, **params: Any) -> Iterator[tuple[int, int]]:
    """Run the server with our adapter and policy; yields its ports."""
    port, http_port, metrics_port = (_free_port() for _ in range(3))
    spec = {
        "type": "plugin", "module_path": "engine_adapter.lmcache", "class_name": "PrefixdL2Adapter",
        "adapter_params": {"host_bytes": 0, "disk_bytes": 64 << 20, "disk_path": str(folder / "blocks"),
                           "chunk_tokens": _CHUNK, "staging_bytes": 64 << 20, **params},
    }  # fmt: skip
    command = [
        sys.executable, "-m", "engine_adapter.lmcache", "server", "--host", "127.0.0.1", "--port", str(port),
        "--http-host", "127.0.0.1", "--http-port", str(http_port), "--prometheus-port", str(metrics_port),
        "--l1-size-gb", "1", "--l1-init-size-gb", "1", "--no-l1-use-lazy", "--eviction-policy", "LRU",
        "--chunk-size", str(_CHUNK), "--l2-adapter", json.dumps(spec), "--l2-prefetch-policy", "prefixd",
        "--shm-name", f"prefixd_test_{port}", "--supported-transfer-mode", "auto",
    ]  # fmt: skip
    with (folder / "server.log").open("a") as log:
        server = subprocess.Popen(
            command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _await_answer(server, http_port, folder / "server.log")
        yield port, http_port
    finally:
        server.terminate()
        assert server.wait(40) is not None


def _await_answer(server: subprocess.Popen[bytes], http_port: int, log: Path) -> None:
    ends_s = time.monotonic() + _START_S
    while time.monotonic() < ends_s and server.poll() is None:
        try:
            with urlopen(f"http://127.0.0.1:{http_port}/", timeout=5.0):
                return
        except HTTPError:
            return
        except URLError:
            time.sleep(0.2)
    raise AssertionError(f"LMCache's server does not answer: {log.read_text()[-3000:]}")


@contextmanager
def _client(port: int, http_port: int) -> Iterator[Any]:
    context = sdk.LMCacheSDKContext(
        url=f"tcp://127.0.0.1:{port}", http_url=f"http://127.0.0.1:{http_port}", model_name="tiny",
        kind=sdk.LMCacheSDKCacheKind.KV, timeout=30,
    )  # fmt: skip
    context._world_size = context._num_kv_readers = 1
    block = (1, 2, _HEADS, _ENGINE_BLOCK, _DIM)
    context._kv_caches = {f"layer.{n}": torch.zeros(block, dtype=torch.bfloat16) for n in range(_LAYERS)}
    transfer = sdk.create_transfer_context(
        context._kv_caches, instance_id=context.instance_id, req_client=context._req_client
    )
    context.blocks_in_chunk = context._chunk_size // _ENGINE_BLOCK
    transfer.register(
        context._kv_caches, context._model_name, 1, context.blocks_in_chunk, context._mq_timeout,
        layout_hints=sdk.LayoutHints(
            kv_layout="HND", num_kv_heads=_HEADS, tokens_per_block=_ENGINE_BLOCK, head_dim=_DIM
        ),
    )  # fmt: skip
    context._transfer_ctx = sdk.ContiguousTransferWrapper(transfer.engine_driven_context, context._chunk_size)
    yield context


def _status(http_port: int) -> dict[str, Any]:
    """Return what our adapter says of itself in the server's status."""
    with urlopen(f"http://127.0.0.1:{http_port}/status", timeout=10.0) as answer:
        told = json.load(answer)
    (adapter,) = _found(told, "l2_adapters")
    return dict(adapter)


def _found(told: Any, name: str) -> Any:
    if isinstance(told, dict):
        if name in told:
            return told[name]
        return next((found for each in told.values() if (found := _found(each, name)) is not None), None)
    return None


def _stored(port: int, http_port: int, payload: torch.Tensor) -> None:
    """Store a prompt, and wait until our adapter has all of it."""
    with _client(port, http_port) as client:
        assert client.store(payload, TOKENS)
    ends_s = time.monotonic() + 30
    while _status(http_port).get("chunks_stored", 0) < _NUM_CHUNKS:
        assert time.monotonic() < ends_s, _status(http_port)
        time.sleep(0.1)


@pytest.fixture(scope="module")
def payload() -> torch.Tensor:
    shape = (2, _LAYERS, len(TOKENS), _HEADS * _DIM)
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory, payload: torch.Tensor) -> Path:
    """The folder of a server that has stored a prompt, and has ended."""
    folder = tmp_path_factory.mktemp("first")
    with _server(folder) as ports:
        _stored(*ports, payload)
    return folder


@pytest.fixture
def folder(tmp_path: Path, left_behind: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(left_behind, tmp_path / "server")


def _num_chunks_found(port: int, http_port: int, payload: torch.Tensor) -> int:
    """Return how many chunks of the prompt are given, which must be those that were stored."""
    with _client(port, http_port) as client:
        found = client.retrieve(TOKENS)
    if found is None:
        return 0
    num_tokens = int(found.shape[2])
    assert torch.equal(found, payload[:, :, :num_tokens])
    return num_tokens // _CHUNK


def test_a_prompt_is_restored_after_a_restart(folder: Path, payload: torch.Tensor) -> None:
    with _server(folder) as ports:
        assert _num_chunks_found(*ports, payload) == _NUM_CHUNKS
        assert _status(ports[1])["chunks_loaded"] == _NUM_CHUNKS


def test_a_flipped_byte_is_a_miss(folder: Path, payload: torch.Tensor) -> None:
    files = [path for path in (folder / "blocks").rglob("*") if path.is_file()]
    largest = max(path.stat().st_size for path in files)
    blocks = [path for path in files if path.stat().st_size == largest]
    assert len(blocks) == _NUM_CHUNKS
    for block in blocks:
        held = bytearray(block.read_bytes())
        held[-1000] ^= 1
        block.write_bytes(held)
    with _server(folder) as ports:
        assert _num_chunks_found(*ports, payload) == 0
        assert _status(ports[1])["chunks_not_loaded"] == _NUM_CHUNKS


def test_what_is_computed_sooner_is_not_prefetched(folder: Path, payload: torch.Tensor) -> None:
    with _server(folder, prefill_tokens_per_s=1e12) as ports:
        assert _num_chunks_found(*ports, payload) == _NUM_CHUNKS, "what loading costs is not known yet"
        assert _num_chunks_found(*ports, payload) == 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
