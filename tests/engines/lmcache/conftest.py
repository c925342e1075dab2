"""What the tests of LMCache's second tier share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from select import POLLIN, poll
from typing import Any

import pytest
import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.platform import consume_fd

from engine_adapter.lmcache import PrefixdL2Adapter
from engine_adapter.serving_config import SidecarConfig, TierSetup
from engine_adapter.sidecar import open_sidecar
from tests.valkey import Valkey

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {
    **os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "LMCACHE_TRACK_USAGE": "false",
    "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip
SHAPE = (2, 2, 16, 64)
_WAIT_MS = 30_000

Open = Callable[..., "Driven"]


def key_of(
    number: int, *, rank: int = 0x01000100, salt: str = "", model: str = "model", group: int = 0
) -> Any:
    return ObjectKey(number.to_bytes(16, "big"), model, rank, object_group_id=group, cache_salt=salt)


def memory_of(numbers: torch.Tensor) -> Any:
    raw = numbers.reshape(-1).view(torch.uint8)
    facts = MemoryObjMetadata(
        shape=numbers.shape, dtype=numbers.dtype, address=0, phy_size=raw.numel(), fmt=MemoryFormat.KV_2LTD,
        ref_count=1, shapes=[numbers.shape], dtypes=[numbers.dtype],
    )  # fmt: skip
    return TensorMemoryObj(raw, facts, parent_allocator=None)


def numbers_of(seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).to(dtype)


def layouts_of(dtype: torch.dtype = torch.bfloat16) -> dict[int, Any]:
    return {0: MemoryLayoutDesc([torch.Size(SHAPE)], [dtype])}


class Heard:
    """What a listener of LMCache's is told."""

    def __init__(self) -> None:
        self.stored: list[Any] = []
        self.accessed: list[Any] = []
        self.deleted: list[Any] = []

    def on_l2_keys_stored(self, keys: list[Any], sizes: list[int]) -> None:
        self.stored += zip(keys, sizes, strict=True)

    def on_l2_keys_accessed(self, keys: list[Any]) -> None:
        self.accessed += keys

    def on_l2_keys_deleted(self, keys: list[Any]) -> None:
        self.deleted += keys


class Driven:
    """An adapter, driven as LMCache's controllers drive theirs."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params
        self.adapter = PrefixdL2Adapter(params)
        self.heard = Heard()
        self.adapter.register_listener(self.heard)

    def store(self, blocks: dict[Any, torch.Tensor]) -> Any:
        task = self.adapter.submit_store_task(list(blocks), list(map(memory_of, blocks.values())))
        return self._result(
            self.adapter.get_store_event_fd(), lambda: self.adapter.pop_completed_store_tasks().get(task)
        )

    def find(self, keys: Sequence[Any], layouts: dict[int, Any] | None = None) -> list[bool]:
        task = self.adapter.submit_lookup_and_lock_task(list(keys), layouts or layouts_of())
        told = self._result(
            self.adapter.get_lookup_and_lock_event_fd(),
            lambda: self.adapter.query_lookup_and_lock_result(task),
        )
        assert self.adapter.query_lookup_and_lock_result(task) is None
        return [told.test(index) for index in range(len(keys))]

    def load(self, keys: Sequence[Any], dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor | None]:
        """Load chunks; ``None`` for those that were not."""
        landed = [torch.zeros(SHAPE, dtype=dtype) for _ in keys]
        task = self.adapter.submit_load_task(list(keys), list(map(memory_of, landed)))
        told = self._result(self.adapter.get_load_event_fd(), lambda: self.adapter.query_load_result(task))
        return [numbers if told.test(index) else None for index, numbers in enumerate(landed)]

    def fetch(self, keys: Sequence[Any]) -> list[torch.Tensor | None]:
        """Find, load and unlock, as a prefetch does."""
        found = [key for key, is_there in zip(keys, self.find(keys), strict=True) if is_there]
        loaded = dict(zip(found, self.load(found), strict=True))
        self.adapter.submit_unlock(found)
        return [loaded.get(key) for key in keys]

    def _result(self, descriptor: int, ask: Callable[[], Any]) -> Any:
        waiting = poll()
        waiting.register(descriptor, POLLIN)
        while waiting.poll(_WAIT_MS):
            consume_fd(descriptor)
            if (told := ask()) is not None:
                return told
        raise AssertionError("the adapter does not answer")


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Open adapters, with memory and a disk in the test's folder unless it says otherwise."""
    with ExitStack() as stack:

        def open_one(**params: Any) -> Driven:
            own = {"host_bytes": 64 << 20, "disk_bytes": 64 << 20, "disk_path": str(tmp_path / "blocks")}
            driven = Driven((params if "store" in params else own | params) | {"staging_bytes": 64 << 20})
            stack.callback(driven.adapter.close)
            return driven

        yield open_one


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """A server of its own for one test."""
    server = Valkey()
    yield server
    server.close()


@pytest.fixture
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a store that others keep."""
    socket = tmp_path_factory.mktemp("s") / "s"
    setups = (TierSetup("host", 64 << 20, "lru", "through"),)
    kept = open_sidecar(SidecarConfig(setups, None, {}, socket))
    yield f"unix://{socket}"
    kept.close()
