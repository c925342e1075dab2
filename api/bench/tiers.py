"""``prefixd bench tiers``: each tier against the plain way of moving the same bytes, in the same run."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from api.bench.plain import BareFiles, copy_in, copy_out
from api.bench.timing import medians, seconds
from backends.disk import DiskBackend
from backends.disk_frames import PAGE_BYTES
from backends.host import HostBackend
from kvstore.arena import Arena, slot_stride
from kvstore.errors import ServerFailedError
from kvstore.interface import BlockStore
from kvstore.keys import chain_keys
from kvstore.namespace import Namespace
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import TierConfig, TierSpec
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU

SMALL_BLOCK_BYTES = 64 * 1024
_NAMESPACE = Namespace("benchmark", "{}", "float32", "float32", block_tokens=16)
_READERS = 4
_LOOKED_UP_TOKENS = 2048
_MEASURED_BYTES = 96 << 20


@dataclass(frozen=True)
class TiersBench:
    """What is measured: blocks of ``block_bytes``, medians over ``rounds``, files in ``folder``."""

    block_bytes: int
    rounds: int
    folder: Path

    @property
    def num_blocks(self) -> int:
        """Blocks moved in one measurement: about 96 MiB, the KV of 2,000 tokens of a small model."""
        return max(8, _MEASURED_BYTES // self.block_bytes)

    def stages(self) -> dict[str, partial[dict[str, float]]]:
        """Return what to run, by its key in the report."""
        return {
            "host": partial(_bench_host, self),
            "disk": partial(_bench_disk, self),
            "small_block": partial(_bench_small_blocks, self.rounds),
            "lookup": partial(_bench_lookup, self.rounds),
        }


@dataclass(frozen=True)
class _Blocks:
    """Fresh keys, one payload, and room to read into."""

    keys: list[bytes]
    payload: memoryview
    out: memoryview

    @classmethod
    def of(cls, num_blocks: int, block_bytes: int) -> _Blocks:
        payload = memoryview(mmap.mmap(-1, block_bytes))
        payload[:] = os.urandom(block_bytes)
        return cls(_fresh_keys(num_blocks), payload, memoryview(mmap.mmap(-1, block_bytes)))


def _bench_host(bench: TiersBench) -> dict[str, float]:
    blocks = _Blocks.of(bench.num_blocks, bench.block_bytes)
    plain = memoryview(mmap.mmap(-1, bench.num_blocks * bench.block_bytes))
    with _host_store(bench, audit_share=0) as fast, _host_store(bench, audit_share=1) as verified:
        _put_all(verified, blocks.keys, blocks.payload)
        held: list[list[bytes]] = [blocks.keys]
        _put_all(fast, blocks.keys, blocks.payload)

        def put_fresh() -> None:
            held[0] = keys.pop()
            _put_all(fast, held[0], blocks.payload)

        keys = [_fresh_keys(bench.num_blocks) for _ in range(bench.rounds + 1)]
        times = medians(
            {
                "plain_put": partial(copy_in, plain, blocks.payload),
                "put": put_fresh,
                "plain_get": partial(copy_out, plain, blocks.out),
                "get": lambda: _get_all(fast, held[0], blocks.out),
                "verified_get": lambda: _get_all(verified, blocks.keys, blocks.out),
            },
            bench.rounds,
        )
    return rates(bench.num_blocks * bench.block_bytes, times)


def _bench_disk(bench: TiersBench) -> dict[str, float]:
    """Measure verified loads and writes behind the store against bare files and as many threads."""
    blocks = _Blocks.of(bench.num_blocks, bench.block_bytes)
    bare = BareFiles(bench.folder / "bare", bench.num_blocks, blocks.payload, _READERS)
    with closing(bare), _disk_store(bench, bench.folder / "store") as store:
        held: list[list[bytes]] = [blocks.keys]

        def put_fresh() -> None:
            store.clear()
            store.flush(60.0)
            held[0] = _fresh_keys(bench.num_blocks)
            times_put.append(seconds(lambda: _put_all_behind(store, held[0], blocks.payload)))

        times_put: list[float] = []
        bare.write_all()
        put_fresh()
        times = medians(
            {
                "plain_put": bare.write_all,
                "put": put_fresh,
                "plain_get": bare.read_all,
                "get": lambda: load_all(store, held[0]),
            },
            bench.rounds,
        )
    # Every load from a disk is verified.
    return rates(
        bench.num_blocks * bench.block_bytes,
        {**times, "put": median(times_put[2:]), "verified_get": times["get"]},
    )


def rates(moved_bytes: int, times: Mapping[str, float]) -> dict[str, float]:
    """Return rates, and ratios to the plain way, from each side's seconds."""
    moved_gb = moved_bytes / 1e9
    return {
        "put_gb_s": moved_gb / times["put"],
        "get_gb_s": moved_gb / times["get"],
        "put_ratio": times["plain_put"] / times["put"],
        "get_ratio": times["plain_get"] / times["get"],
        "verified_get_ratio": times["plain_get"] / times["verified_get"],
    }


def _bench_small_blocks(rounds: int) -> dict[str, float]:
    """Microseconds to put and to get one block of 64 KiB through the store, its copy included."""
    bench = TiersBench(SMALL_BLOCK_BYTES, rounds, Path())
    blocks = _Blocks.of(bench.num_blocks, SMALL_BLOCK_BYTES)
    with _host_store(bench, audit_share=0) as store:
        _put_all(store, blocks.keys, blocks.payload)
        keys = [_fresh_keys(bench.num_blocks) for _ in range(rounds)]
        put_s = median(
            seconds(partial(store.put, _NAMESPACE, key, b"", blocks.payload))
            for group in keys
            for key in group
        )
        get_s = median(
            seconds(partial(store.get_into, key, blocks.out)) for _ in range(rounds) for key in keys[-1]
        )
    return {"block_bytes": SMALL_BLOCK_BYTES, "put_us": put_s * 1e6, "get_us": get_s * 1e6}


def _bench_lookup(rounds: int) -> dict[str, float]:
    """Hashing and looking up a resident prompt of 2,048 tokens, and the lookup of a key alone."""
    bench = TiersBench(PAGE_BYTES, rounds, Path())
    tokens = list(range(_LOOKED_UP_TOKENS))
    keys = chain_keys(_NAMESPACE.digest, tokens, _NAMESPACE.block_tokens)
    with _host_store(bench, audit_share=0) as store:
        _put_all(store, keys, memoryview(bytes(PAGE_BYTES)))

        def hash_and_look_up() -> None:
            store.lookup(chain_keys(_NAMESPACE.digest, tokens, _NAMESPACE.block_tokens)).release()

        times = medians(
            {"prompt": hash_and_look_up, "keys": lambda: store.lookup(keys).release()}, rounds * 50
        )
    return {"keys_per_s": len(keys) / times["keys"], "us_per_2048_tokens": times["prompt"] * 1e6}


def _put_all(store: TieredStore, keys: Sequence[bytes], payload: memoryview) -> None:
    for key in keys:
        store.put(_NAMESPACE, key, b"", payload)


_LOST = "a block that was just put is not there: the medium loses blocks, or has too little memory"


def _put_all_behind(store: TieredStore, keys: Sequence[bytes], payload: memoryview) -> None:
    """Put through the staging memory, as fast as it empties, until all is on the medium."""
    for key in keys:
        while not store.put(_NAMESPACE, key, b"", payload):
            store.flush(60.0)
    store.flush(60.0)


def _get_all(store: TieredStore, keys: Sequence[bytes], out: memoryview) -> None:
    for key in keys:
        if not store.get_into(key, out):
            raise ServerFailedError(_LOST)


def load_all(store: BlockStore, keys: Sequence[bytes]) -> None:
    """Load as an engine does: all blocks under way at once, each consumed where it landed."""
    hit = store.lookup(keys)
    tickets = [store.load(hit, index, hit.deadline_s) for index in range(len(keys))]
    for ticket in tickets:
        ticket.wait(60.0)
        block = ticket.take()
        if block is None:
            raise ServerFailedError(_LOST)
        block.release()
    hit.release()


def _fresh_keys(num_blocks: int) -> list[bytes]:
    return [os.urandom(16) for _ in range(num_blocks)]


@contextmanager
def _host_store(bench: TiersBench, audit_share: float) -> Iterator[TieredStore]:
    budget_bytes = max(bench.num_blocks, _LOOKED_UP_TOKENS // _NAMESPACE.block_tokens) * slot_stride(
        bench.block_bytes
    )
    arena = Arena(budget_bytes)
    config = TierConfig("host", budget_bytes)
    spec = TierSpec(config, HostBackend(arena), LeafFirstLRU(), whole_blocks_that_fit)
    with closing(TieredStore([spec], arena, StoreConfig(audit_share=audit_share))) as store:
        yield store


@contextmanager
def _disk_store(bench: TiersBench, folder: Path) -> Iterator[TieredStore]:
    arena = Arena(32 * slot_stride(bench.block_bytes))
    budget_bytes = 2 * bench.num_blocks * (PAGE_BYTES + slot_stride(bench.block_bytes))
    config = TierConfig("disk", budget_bytes, num_readers=_READERS)
    spec = TierSpec(config, DiskBackend(folder), LeafFirstLRU(), whole_blocks_that_fit)
    with closing(TieredStore([spec], arena)) as store:
        yield store
