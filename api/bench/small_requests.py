"""Small requests to a store while blocks flow: neither may make the other wait."""

from __future__ import annotations

import os
import time
from contextlib import closing
from multiprocessing import get_context
from statistics import quantiles
from typing import Any

from api.bench.served_store import ServedStore
from kvstore.connect import connect
from kvstore.errors import ServerFailedError
from kvstore.namespace import Namespace

_NAMESPACE = Namespace("benchmark", "{}", "float32", "float32", block_tokens=16)
_PER_S = 500
_FLOW_BYTES_PER_S = 1e9
_FOR_S = 4.0
_NUM_BLOCKS = 16
_NUM_KEYS = 8


class _Flow:
    """Loads blocks through shared memory at a steady rate, in a process of its own, until it is to end."""

    def __init__(self, address: str, keys: list[bytes], block_bytes: int) -> None:
        spawning = get_context("spawn")
        self._is_over = spawning.Event()
        self._num_bytes = spawning.Value("q", 0)
        arguments = (address, keys, block_bytes, self._num_bytes, self._is_over)
        self._process = spawning.Process(target=_flow, args=arguments, daemon=True)
        self._process.start()
        while not self.num_bytes and self._process.is_alive():
            time.sleep(0.01)

    @property
    def num_bytes(self) -> int:
        """Bytes that were loaded so far."""
        return int(self._num_bytes.value)

    def stop(self) -> None:
        """Let it end, and wait for that."""
        self._is_over.set()
        self._process.join()


def _flow(address: str, keys: list[bytes], block_bytes: int, num_bytes: Any, is_over: Any) -> None:
    out = memoryview(bytearray(block_bytes))
    with closing(connect(address)) as store:
        begun_s = time.perf_counter()
        while not is_over.is_set():
            for key in keys:
                num_bytes.value += block_bytes * store.get_into(key, out)
                time.sleep(max(0.0, num_bytes.value / _FLOW_BYTES_PER_S - (time.perf_counter() - begun_s)))


def bench_small_requests(served: ServedStore, block_bytes: int) -> dict[str, float]:
    """Ask 500 times a second over HTTP what is where, while 1 GB/s of blocks is loaded.

    A request that comes late because the one before it took long counts from when it should have come.
    """
    keys = [os.urandom(16) for _ in range(_NUM_BLOCKS)]
    with closing(connect(served.unix)) as loading, closing(connect(served.http)) as asking:
        for key in keys:
            if not loading.put(_NAMESPACE, key, b"", memoryview(bytes(block_bytes))):
                raise ServerFailedError("a block was not taken: the store has too little memory")
        flow = _Flow(served.unix, keys, block_bytes)
        taken_s, begun_s, flowed_bytes = list[float](), time.perf_counter(), flow.num_bytes
        for number in range(int(_PER_S * _FOR_S)):
            due_s = begun_s + number / _PER_S
            time.sleep(max(0.0, due_s - time.perf_counter()))
            asking.peek(keys[:_NUM_KEYS])
            taken_s.append(time.perf_counter() - due_s)
        lasted_s, flowed_bytes = time.perf_counter() - begun_s, flow.num_bytes - flowed_bytes
        flow.stop()
    return {
        "p50_s": quantiles(taken_s, n=100)[49],
        "p99_s": quantiles(taken_s, n=100)[98],
        "num_per_s": len(taken_s) / lasted_s,
        "flow_gb_s": flowed_bytes / lasted_s / 1e9,
    }
