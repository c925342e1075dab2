"""LMCache's second tiers as a side of ``benchmarks/lmcache_l2.py``: ADAPTERS (JSON), NUM_KEYS, NUM_BYTES.

Runs in LMCache's own environment, for LMCache 0.5.6; each adapter is made and asked as its server does it.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import ctypes
import json
import math
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from itertools import count
from mmap import mmap
from select import POLLIN, poll
from typing import Any

import torch
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.platform import consume_fd

from benchmarks.sides.protocol import Command, serve

_WAIT_MS = 60_000


def load() -> Mapping[str, Command]:
    """Open the adapters and return what can be asked: ``store`` and ``load`` of each, and ``memcpy``."""
    specs = json.loads(sys.argv[1])
    num_keys, num_bytes = map(int, sys.argv[2:4])
    payload, landed = (_aligned(num_keys, num_bytes) for _ in range(2))
    payload.random_(0, 255)
    sources, targets = (list(map(_memory, rows)) for rows in (payload, landed))
    adapters = {name: _opened(spec) for name, spec in specs.items()}
    keys: dict[str, list[Any]] = {}
    numbers = count()

    def store(name: str) -> float:
        keys[name] = [_key(next(numbers)) for _ in range(num_keys)]
        adapter = adapters[name]
        began_s = time.perf_counter()
        task = adapter.submit_store_task(keys[name], sources)
        told = _result(adapter.get_store_event_fd(), lambda: adapter.pop_completed_store_tasks().get(task))
        spent_s = time.perf_counter() - began_s
        assert told.is_successful(), name
        return spent_s

    def retrieve(name: str) -> float:
        # Not by torch, whose threads go on spinning for a while.
        ctypes.memset(landed.data_ptr(), 0, landed.nbytes)
        adapter = adapters[name]
        began_s = time.perf_counter()
        task = adapter.submit_lookup_and_lock_task(keys[name], {})
        found = _result(
            adapter.get_lookup_and_lock_event_fd(), lambda: adapter.query_lookup_and_lock_result(task)
        )
        task = adapter.submit_load_task(keys[name], targets)
        loaded = _result(adapter.get_load_event_fd(), lambda: adapter.query_load_result(task))
        adapter.submit_unlock(keys[name])
        spent_s = time.perf_counter() - began_s
        assert found.popcount() == loaded.popcount() == num_keys, name
        assert torch.equal(payload, landed), name
        return spent_s

    def memcpy() -> float:
        began_s = time.perf_counter()
        for source, target in zip(sources, targets, strict=True):
            memoryview(target.byte_array).cast("B")[:] = memoryview(source.byte_array).cast("B")
        return time.perf_counter() - began_s

    return {"store": store, "load": retrieve, "memcpy": memcpy}


def _aligned(*shape: int) -> torch.Tensor:
    """Return memory in whole pages, as LMCache's own is."""
    return torch.frombuffer(mmap(-1, math.prod(shape)), dtype=torch.uint8).view(*shape)


def _opened(spec: Mapping[str, Any]) -> Any:
    (config,) = parse_args_to_l2_adapters_config(Namespace(l2_adapter=[json.dumps(spec)])).adapters
    return create_l2_adapter(config)


def _result(descriptor: int, ask: Callable[[], Any]) -> Any:
    """Wait as LMCache's controllers do, and return what a task has told."""
    waiting = poll()
    waiting.register(descriptor, POLLIN)
    while waiting.poll(_WAIT_MS):
        consume_fd(descriptor)
        if (told := ask()) is not None:
            return told
    raise SystemExit("an adapter does not answer")


def _key(number: int) -> Any:
    return ObjectKey(chunk_hash=number.to_bytes(16, "big"), model_name="benchmark", kv_rank=0)


def _memory(row: torch.Tensor) -> Any:
    shape, dtype = row.shape, row.dtype
    facts = MemoryObjMetadata(
        shape=shape, dtype=dtype, address=0, phy_size=row.numel(), fmt=MemoryFormat.KV_2LTD, ref_count=1,
        shapes=[shape], dtypes=[dtype],
    )  # fmt: skip
    return TensorMemoryObj(row, facts, parent_allocator=None)


if __name__ == "__main__":
    serve(load)
