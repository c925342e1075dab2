"""Our sidecar as a side of ``benchmarks/sidecars.py``: BLOCK_BYTES NUM_BLOCKS."""

from __future__ import annotations

import atexit
import mmap
import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack

from api.bench.served_store import served_store
from benchmarks.sides.protocol import Command, serve
from kvstore.arena import slot_stride
from kvstore.connect import connect
from kvstore.namespace import Namespace

_NAMESPACE = Namespace("benchmark", "{}", "float32", "float32", block_tokens=16)


def load() -> Mapping[str, Command]:
    """Start the sidecar and return what it can be asked."""
    block_bytes, num_blocks = map(int, sys.argv[1:])
    leaving = ExitStack()
    atexit.register(leaving.close)
    served = leaving.enter_context(served_store(2 * num_blocks * slot_stride(block_bytes)))
    store = connect(served.unix)
    leaving.callback(store.close)
    payload, plain = memoryview(os.urandom(block_bytes)), memoryview(mmap.mmap(-1, num_blocks * block_bytes))
    keys: list[bytes] = []

    def store_s() -> float:
        keys[:] = [os.urandom(16) for _ in range(num_blocks)]
        began_s = time.perf_counter()
        taken = [store.put(_NAMESPACE, key, b"", payload) for key in keys]
        hit = store.lookup(keys)
        hit.release()
        assert all(taken)
        assert None not in hit.tiers
        return time.perf_counter() - began_s

    def load_s() -> float:
        began_s = time.perf_counter()
        hit = store.lookup(keys)
        blocks = [store.load(hit, index, hit.deadline_s).take() for index in range(len(keys))]
        spent_s = time.perf_counter() - began_s
        for block in blocks:
            assert block is not None
            assert block.data == payload
            block.release()
        hit.release()
        return spent_s

    def memcpy_s() -> float:
        began_s = time.perf_counter()
        for start in range(0, len(plain), block_bytes):
            plain[start : start + block_bytes] = payload
        return time.perf_counter() - began_s

    return {"store": store_s, "load": load_s, "memcpy": memcpy_s}


if __name__ == "__main__":
    serve(load)
