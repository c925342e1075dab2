"""LMCache's sidecar as a side of ``benchmarks/sidecars.py``: NUM_BYTES; runs in LMCache's own environment.

For LMCache 0.5.6, through its SDK and shared memory: chunks of 256 tokens, 32 MiB, of a model with 32 layers
and 8 heads of 128 in 16 bits. Its memory is taken when it starts.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import atexit
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from benchmarks.sides.protocol import Command, serve

_LAYERS, _HEADS, _DIM, _ENGINE_BLOCK = 32, 8, 128, 16
_START_S = 120.0


def load() -> Mapping[str, Command]:
    """Start the sidecar and return what it can be asked."""
    import torch  # noqa: PLC0415  of LMCache's environment

    num_bytes = int(sys.argv[1])
    context = _connected(*_started())
    num_tokens = num_bytes // (2 * _LAYERS * _HEADS * _DIM * 2)
    shape = (2, _LAYERS, num_tokens, _HEADS * _DIM)
    payload = torch.randint(-30_000, 30_000, shape, dtype=torch.int16).view(torch.bfloat16)
    prompts = (range(number * 1_000_003, number * 1_000_003 + num_tokens) for number in itertools.count(1))
    tokens: list[int] = []

    def store_s() -> float:
        tokens[:] = next(prompts)
        began_s = time.perf_counter()
        assert context.store(payload, tokens)
        return time.perf_counter() - began_s

    def load_s() -> float:
        began_s = time.perf_counter()
        found = context.retrieve(tokens)
        spent_s = time.perf_counter() - began_s
        assert torch.equal(found.reshape(-1).view(torch.int16), payload.reshape(-1).view(torch.int16))
        return spent_s

    return {"store": store_s, "load": load_s}


def _started() -> tuple[int, int]:
    """Start the server; returns its ports."""
    port, http_port, metrics_port = (_free_port() for _ in range(3))
    command = [
        str(Path(sys.executable).with_name("lmcache")), "server",
        "--host", "127.0.0.1", "--port", str(port),
        "--http-host", "127.0.0.1", "--http-port", str(http_port), "--prometheus-port", str(metrics_port),
        "--l1-size-gb", "1", "--l1-init-size-gb", "1", "--no-l1-use-lazy",
        "--eviction-policy", "LRU", "--shm-name", f"prefixd_bench_{os.getpid()}",
        "--supported-transfer-mode", "auto",
    ]  # fmt: skip
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    atexit.register(server.wait)
    atexit.register(server.terminate)
    ends_s = time.monotonic() + _START_S
    while time.monotonic() < ends_s and server.poll() is None:
        try:
            with urlopen(f"http://127.0.0.1:{http_port}/", timeout=5.0):
                return port, http_port
        except URLError as error:
            if hasattr(error, "code"):  # it answers, if only that there is nothing
                return port, http_port
            time.sleep(0.5)
    raise SystemExit("LMCache's server does not answer")


def _connected(port: int, http_port: int):  # type: ignore[no-untyped-def]  # LMCache's own type
    import torch  # noqa: PLC0415  of LMCache's environment
    from lmcache.sdk import context as sdk  # noqa: PLC0415  likewise

    context = sdk.LMCacheSDKContext(
        url=f"tcp://127.0.0.1:{port}",
        http_url=f"http://127.0.0.1:{http_port}",
        model_name="benchmark",
        kind=sdk.LMCacheSDKCacheKind.KV,
        timeout=60,
    )
    context._world_size = context._num_kv_readers = 1
    block = (1, 2, _HEADS, _ENGINE_BLOCK, _DIM)
    layers = [f"layer.{number}" for number in range(_LAYERS)]
    context._kv_caches = {layer: torch.zeros(block, dtype=torch.bfloat16) for layer in layers}
    transfer = sdk.create_transfer_context(
        context._kv_caches, instance_id=context.instance_id, req_client=context._req_client
    )
    context.blocks_in_chunk = context._chunk_size // _ENGINE_BLOCK
    hints = sdk.LayoutHints(
        kv_layout="HND", num_kv_heads=_HEADS, tokens_per_block=_ENGINE_BLOCK, head_dim=_DIM
    )
    transfer.register(
        context._kv_caches, context._model_name, 1, context.blocks_in_chunk, context._mq_timeout,
        layout_hints=hints,
    )  # fmt: skip
    context._transfer_ctx = sdk.ContiguousTransferWrapper(transfer.engine_driven_context, context._chunk_size)
    return context


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    serve(load)
