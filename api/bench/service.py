"""``prefixd bench service``: a store in another process, through shared memory and over HTTP."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from httpx import Client

from api.bench.plain import copy_in
from api.bench.served_store import ServedStore, served_store
from api.bench.small_requests import bench_small_requests
from api.bench.tiers import load_all
from api.bench.timing import medians, seconds
from kvstore.arena import slot_stride
from kvstore.connect import connect
from kvstore.errors import ServerFailedError
from kvstore.keys import chain_keys
from kvstore.namespace import Namespace
from kvstore.remote.client import RemoteStore

_NAMESPACE = Namespace("benchmark", "{}", "float32", "float32", block_tokens=16)
_LOOKED_UP_TOKENS = 2048
_SMALL_BYTES = 4096
_LISTED_BLOCKS = 10_000
_MEASURED_BYTES = 128 << 20
_LOST = "a block that was just stored is not there: the store is in use, or has too little memory"


@dataclass(frozen=True)
class ServiceBench:
    """What is measured: blocks of ``block_bytes``, medians over ``rounds``."""

    block_bytes: int
    rounds: int

    @property
    def num_blocks(self) -> int:
        """Blocks moved in one measurement: about 128 MiB."""
        return max(8, _MEASURED_BYTES // self.block_bytes)

    @contextmanager
    def server(self) -> Iterator[ServedStore]:
        """Start the store to be measured: it holds two rounds of blocks, and evicts for the third."""
        with served_store(2 * self.num_blocks * slot_stride(self.block_bytes)) as served:
            yield served

    def stages(self, served: ServedStore) -> dict[str, partial[Any]]:
        """Return what to run, by its key in the report."""
        return {
            "lookup_2048_tokens_p50_s": partial(_bench_lookup, served, self.rounds, is_there=True),
            "miss_p50_s": partial(_bench_lookup, served, self.rounds, is_there=False),
            "arena": partial(_bench_store_and_load, self, served.unix),
            "http": partial(_bench_store_and_load, self, served.http),
            "admin_list_10k_blocks_s": partial(_bench_list, served, self.rounds),
            "small_requests": partial(bench_small_requests, served, self.block_bytes),
        }


def _bench_lookup(served: ServedStore, rounds: int, *, is_there: bool) -> float:
    """Seconds to hash a prompt of 2,048 tokens, look it up and give the lease back."""
    tokens = range(_LOOKED_UP_TOKENS)
    with closing(connect(served.unix)) as store:
        digest = store.own_namespace(_NAMESPACE).digest
        if is_there:
            _store_all(store, chain_keys(digest, tokens, 16), memoryview(bytes(_SMALL_BYTES)))
        else:
            digest = bytes(len(digest))

        def look_up() -> None:
            store.lookup(chain_keys(digest, tokens, _NAMESPACE.block_tokens)).release()

        look_up()
        return median(seconds(look_up) for _ in range(rounds * 50))


def _bench_store_and_load(bench: ServiceBench, address: str) -> dict[str, float]:
    """Store fresh blocks, all of which the server has copied, and load them, against a memcpy of the same."""
    num_blocks, size = bench.num_blocks, bench.block_bytes
    payload = memoryview(mmap.mmap(-1, size))
    payload[:] = os.urandom(size)
    plain, landing = (memoryview(mmap.mmap(-1, num_blocks * size)) for _ in range(2))
    held: list[list[bytes]] = [[]]
    with closing(connect(address)) as store:

        def store_fresh() -> None:
            held[0] = [os.urandom(16) for _ in range(num_blocks)]
            _store_all(store, held[0], payload)

        store_fresh()
        times = medians(
            {
                "plain_load": partial(_copy, plain, landing, size),
                "load": lambda: load_all(store, held[0]),
                "plain_store": partial(copy_in, plain, payload),
                "store": store_fresh,
            },
            bench.rounds,
        )
    moved_gb = num_blocks * size / 1e9
    return {
        "store_gb_s": moved_gb / times["store"],
        "load_gb_s": moved_gb / times["load"],
        "store_ratio": times["plain_store"] / times["store"],
        "load_ratio": times["plain_load"] / times["load"],
        "memcpy_gb_s": moved_gb / times["plain_load"],
    }


def _bench_list(served: ServedStore, rounds: int) -> float:
    """Seconds to list 10,000 blocks through the admin API, page by page."""
    with closing(connect(served.unix)) as store:
        _store_all(store, [os.urandom(16) for _ in range(_LISTED_BLOCKS)], memoryview(bytes(_SMALL_BYTES)))
    with Client(base_url=served.http, timeout=60.0) as client:

        def list_all() -> None:
            cursor, num_listed = None, 0
            while cursor or not num_listed:
                page = client.get(
                    "/admin/blocks", params={"limit": 1000} | ({"cursor": cursor} if cursor else {})
                )
                cursor = page.raise_for_status().json()["next_cursor"]
                num_listed += len(page.json()["data"])
            if num_listed < _LISTED_BLOCKS:
                raise ServerFailedError(f"{num_listed} of {_LISTED_BLOCKS} blocks were listed")

        return median(seconds(list_all) for _ in range(rounds))


def _copy(plain: memoryview, landing: memoryview, size: int) -> None:
    for start in range(0, len(plain), size):
        landing[start : start + size] = plain[start : start + size]


def _store_all(store: RemoteStore, keys: list[bytes], payload: memoryview) -> None:
    """Store blocks, and wait until the server has them."""
    for key in keys:
        if not store.put(_NAMESPACE, key, b"", payload):
            raise ServerFailedError(_LOST)
    hit = store.lookup(keys)
    hit.release()
    if None in hit.tiers:
        raise ServerFailedError(_LOST)
