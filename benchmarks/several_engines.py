"""Whether several engines at once each get their share of what one store's process can give.

    python benchmarks/several_engines.py [--engines 4] [--seconds 5] [--http] [--json FILE]

Each engine is a process of its own, of another model with blocks of another size. First each loads its prompt
alone, then all at once; the JSON says what each got, and the smallest share beside an equal one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from api.bench.served_store import served_store
from kvstore.connect import connect
from kvstore.keys import chain_keys
from kvstore.namespace import Namespace

_PROMPT_BYTES = 64 << 20
_BOUND = 0.7
_START_S = 10.0


def main() -> None:
    """Run the benchmark."""
    arguments = _arguments()
    report = measure(arguments.engines, arguments.seconds, over_http=arguments.http)
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


def measure(
    num_engines: int, seconds: float, *, over_http: bool, start_s: float = _START_S
) -> dict[str, Any]:
    """Return the bytes a second that each engine loads, alone and beside the others."""
    with (
        served_store(2 * num_engines * _PROMPT_BYTES) as served,
        ProcessPoolExecutor(num_engines, multiprocessing.get_context("spawn")) as engines,
    ):
        load = partial(_load, served.http if over_http else served.unix, seconds)
        alone = [engines.submit(load, number, 0.0).result() for number in range(num_engines)]
        starts_at_s = time.time() + start_s
        running = [engines.submit(load, number, starts_at_s) for number in range(num_engines)]
        together = [one.result() for one in running]
    smallest = min(together) / (sum(together) / num_engines)
    return {
        "alone_gb_s": [rate / 1e9 for rate in alone],
        "together_gb_s": [rate / 1e9 for rate in together],
        "sum_gb_s": sum(together) / 1e9,
        "smallest_share": smallest,
        "bound": _BOUND,
        "met": smallest >= _BOUND,
    }


def _load(address: str, seconds: float, number: int, starts_at_s: float) -> float:
    """Store a prompt of one's own, load it again and again; returns bytes a second."""
    block_bytes = (1 << 20) * (1 + number % 3)
    store = connect(address)
    namespace = Namespace(f"model {number}", "{}", "float32", "float32", block_tokens=16)
    num_blocks = _PROMPT_BYTES // block_bytes
    keys = chain_keys(store.own_namespace(namespace).digest, range(16 * num_blocks), 16)
    payload = memoryview(os.urandom(block_bytes))
    for key, parent in zip(keys, [b"", *keys], strict=False):
        store.put(namespace, key, parent, payload)
    store.flush(10.0)
    time.sleep(max(0.0, starts_at_s - time.time()))
    loaded_bytes, began_s = 0, time.perf_counter()
    while time.perf_counter() < began_s + seconds:
        hit = store.lookup(keys)
        tickets = [store.load(hit, index, hit.deadline_s) for index in range(num_blocks)]
        for ticket in tickets:
            ticket.wait(10.0)
            block = ticket.take()
            if block is not None:
                loaded_bytes += len(block.data)
                block.release()
        hit.release()
    rate = loaded_bytes / (time.perf_counter() - began_s)
    store.close()
    return rate


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", type=int, default=4, help="how many at once")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each loads")
    parser.add_argument("--http", action="store_true", help="over HTTP instead of shared memory")
    parser.add_argument("--json", type=Path, help="file for the report")
    return parser.parse_args()


if __name__ == "__main__":
    main()
