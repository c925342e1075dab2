"""The example in the documentation is right, over each kind of store."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backends.host import HostBackend
from kvstore.arena import Arena
from kvstore.connect import connect
from kvstore.interface import BlockStore
from kvstore.remote.server import SocketConfig, SocketServer
from kvstore.shared_memory import map_shared_slab
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import TierConfig, TierSpec
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "toy_engine.py"


@pytest.fixture(params=["here", "unix"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlockStore]:
    """Return a store in this process, or behind a socket."""
    arena = Arena(1 << 20, slab_bytes=1 << 16, map_slab=map_shared_slab)
    host = TierSpec(TierConfig("host", 1 << 19), HostBackend(arena), LeafFirstLRU(), whole_blocks_that_fit)
    tiered = TieredStore([host], arena, StoreConfig(audit_share=1.0))
    if request.param == "here":
        yield tiered
    else:
        server = SocketServer(tiered, arena, SocketConfig(tmp_path / "s", staging_bytes=1 << 16))
        client = connect(f"unix://{tmp_path / 's'}")
        yield client
        client.close()
        server.close()
    assert tiered.num_holds == 0
    tiered.close()


def test_it_computes_only_what_is_not_there(store: BlockStore) -> None:
    toy: Any = runpy.run_path(str(EXAMPLE))["ToyEngine"]
    engine = toy(store)
    assert engine.prefill(list(range(21))) == sum(range(21))
    assert engine.num_computed == 21
    assert store.flush(5.0)
    other = toy(store)
    assert other.prefill([*range(21), 7]) == sum(range(21)) + 7
    assert other.num_computed == 2, "five blocks of four tokens are there"


def test_it_is_short(store: BlockStore) -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 100
