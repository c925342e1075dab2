"""A store over media that live in a dictionary, with a clock that tests move."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from backends.host import HostBackend
from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.frame import HEADER_BYTES, Header, identify
from kvstore.namespace import Namespace
from kvstore.seams import Admission, BackendStats, Codec, EvictionPolicy, HeaderChange, OnTransfer, Want
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import TierConfig, TierSpec, WriteMode
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU

BLOCK_BYTES = 4096
NAMESPACE = Namespace("weights", "{}", "float32", "float32", block_tokens=16)


@dataclass
class DictBackend:
    """A medium in a dictionary.

    ``fail`` is called with (operation, key) and may raise or block; ``found`` is the scan for more blocks.
    """

    frames: dict[bytes, tuple[bytes, bytes]] = field(default_factory=dict)
    kept_manifests: dict[bytes, str] = field(default_factory=dict)
    fail: Callable[[str, bytes], None] = lambda _operation, _key: None
    found: Callable[[Callable[[Header], None]], None] = lambda _found: None
    is_closed: bool = False

    def discover(self, found: Callable[[Header], None], _stop: Callable[[], bool]) -> None:
        self.found(found)

    def get_into(self, key: bytes, header: memoryview, payload: memoryview) -> int | None:
        self.fail("get", key)
        frame = self.frames.get(key)
        if frame is None or len(frame[1]) > len(payload):
            return None
        header[:], payload[: len(frame[1])] = frame
        return len(frame[1])

    def put(self, key: bytes, header: memoryview, payload: memoryview) -> None:
        self.fail("put", key)
        self.frames[key] = bytes(header), bytes(payload)

    def delete(self, key: bytes) -> None:
        self.fail("delete", key)
        self.frames.pop(key, None)

    def footprint(self, payload_bytes: int) -> int:
        return payload_bytes + HEADER_BYTES

    def recover(self) -> Iterable[Header]:
        return [self._header(key) for key in self.frames]

    def _header(self, key: bytes) -> Header:
        packed, payload = self.frames[key]
        return identify(packed, key, len(payload))

    def put_manifest(self, namespace: bytes, manifest: str) -> None:
        self.kept_manifests[namespace] = manifest

    def manifests(self) -> Iterable[str]:
        return list(self.kept_manifests.values())

    def stats(self) -> BackendStats:
        return BackendStats(
            sum(self.footprint(len(payload)) for _, payload in list(self.frames.values())), {}
        )

    def close(self) -> None:
        self.fail("close", b"")
        self.is_closed = True


def wait_for_scans() -> None:
    """Wait until no store looks for what its media hold any more."""
    for thread in threading.enumerate():
        if thread.name.endswith("-scan"):
            thread.join(5.0)


@dataclass
class SharedDict(DictBackend):
    """A medium that other processes write to as well."""

    def recover(self) -> Iterable[Header]:
        return ()

    def resident(self, keys: Sequence[bytes]) -> Sequence[Header | None]:
        self.fail("resident", b"")
        frames = [self.frames.get(key) for key in keys]
        return [
            None if frame is None else identify(frame[0], key, len(frame[1]))
            for key, frame in zip(keys, frames, strict=True)
        ]


@dataclass
class AmendingDict(DictBackend):
    """A medium that rewrites headers in place."""

    def amend(self, key: bytes, change: HeaderChange) -> bool:
        self.fail("amend", key)
        frame = self.frames.get(key)
        if frame is None:
            return False
        self.frames[key] = change(Header.unpack(frame[0])).pack(), frame[1]
        return True


@dataclass
class StreamDict(DictBackend):
    """A medium that reads several blocks in one exchange; ``exchanges`` are the keys of each."""

    exchanges: list[list[bytes]] = field(default_factory=list)

    def get_each(self, wants: Sequence[Want]) -> Iterator[int | None]:
        self.exchanges.append([want.key for want in wants])
        self.fail("exchange", b"")
        for want in wants:
            yield self.get_into(*want)


@dataclass
class Rig:
    """A store, what it is made of, and the time it sees."""

    medium: DictBackend = field(default_factory=DictBackend)
    namespace: Namespace = NAMESPACE
    now_s: float = 1000.0
    stores: list[TieredStore] = field(default_factory=list)

    def open(
        self,
        *,
        host_blocks: int = 8,
        disk_blocks: int = 32,
        staging_blocks: int = 8,
        write_mode: WriteMode = WriteMode.THROUGH,
        config: StoreConfig | None = None,
        max_queued_reads: int = 4096,
        max_queued_writes: int = 256,
        num_readers: int = 2,
        max_batch: int = 64,
        admission: Admission = whole_blocks_that_fit,
        codec: Codec | None = None,
        codecs: Sequence[Codec] = (),
        on_transfer: OnTransfer | None = None,
        policy: Callable[[], EvictionPolicy] = LeafFirstLRU,
    ) -> TieredStore:
        """Return a store with the tiers ``host`` and ``disk``; a tier of 0 blocks is left out."""
        arena = Arena((host_blocks + staging_blocks) * BLOCK_BYTES, slab_bytes=4 * BLOCK_BYTES)
        specs = []
        if host_blocks:
            host = TierConfig("host", host_blocks * BLOCK_BYTES)
            specs.append(TierSpec(host, HostBackend(arena), policy(), admission, None, policy))
        if disk_blocks:
            disk_bytes = disk_blocks * self.medium.footprint(BLOCK_BYTES)
            disk = TierConfig(
                "disk",
                disk_bytes,
                write_mode,
                num_readers=num_readers,
                max_queued_reads=max_queued_reads,
                max_queued_writes=max_queued_writes,
                max_batch=max_batch,
            )
            specs.append(TierSpec(disk, self.medium, policy(), admission, codec, policy))
        clock = Clock(lambda: self.now_s, lambda: round(self.now_s * 1000))
        store = TieredStore(specs, arena, config, clock, codecs=codecs, on_transfer=on_transfer)
        self.stores.append(store)
        if isinstance(self.medium, SharedDict):
            wait_for_scans()
        return store

    def counts(self, store: TieredStore, tier: str) -> dict[str, int]:
        """Return what ``tier`` has counted."""
        return next(entry.counts for entry in store.statistics().tiers if entry.name == tier)

    def key(self, number: int) -> bytes:
        """Return the key of the block that stands for ``number``; an audit samples all such keys or none."""
        return b"\x80" + number.to_bytes(15, "big")

    def number(self, key: bytes) -> int:
        """Return the number whose block has this key."""
        return int.from_bytes(key[1:], "big")

    def payload(self, number: int) -> memoryview:
        """Return the bytes of the block that stands for ``number``."""
        return memoryview(bytes([number % 251]) * BLOCK_BYTES)

    def put(self, store: TieredStore, *numbers: int, ttl_s: float | None = None, flush: bool = True) -> int:
        """Store a chain of blocks; returns how many were taken. With ``flush`` the medium has them too."""
        parents = [b"", *(self.key(number) for number in numbers)]
        taken = [
            store.put(NAMESPACE, self.key(number), parent, self.payload(number), ttl_s=ttl_s)
            for number, parent in zip(numbers, parents, strict=False)
        ]
        if flush:
            assert store.flush(5.0)
        return sum(taken)

    def get(self, store: TieredStore, number: int) -> bool:
        """Say whether the store has the block of ``number``; its bytes must be the right ones."""
        out = bytearray(BLOCK_BYTES)
        if not store.get_into(self.key(number), memoryview(out), timeout_s=5.0):
            return False
        assert out == self.payload(number)
        return True

    def tiers(self, store: TieredStore, *numbers: int) -> list[str | None]:
        """Return each block's fastest tier."""
        hit = store.lookup([self.key(number) for number in numbers])
        hit.release()
        return list(hit.tiers)


@pytest.fixture
def rig() -> Iterable[Rig]:
    """Return a rig; at the end every store must be at rest, its books in order."""
    rig = Rig()
    yield rig
    for store in rig.stores:
        store.close(2.0)
        store.check()
        assert store.num_holds == 0
