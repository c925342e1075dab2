"""Opens the tiers that a server is configured with, and the store over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from backends.pagelock import cuda_page_locker
from engine_adapter.calibrate import measure_tiers
from engine_adapter.engine.costs import MOST_BLOCKS_ON_WAY, CostBook
from engine_adapter.engine.models import LoadedModel
from engine_adapter.engine.verifying import MOST_WITNESSES
from engine_adapter.opening import HOST, host_bytes_of, open_tiers, store_config
from engine_adapter.serving_config import ServingConfig
from kvstore.arena import Arena, slot_stride
from kvstore.clock import Clock
from kvstore.mapped_ahead import MappedAhead
from kvstore.registry import Registry
from kvstore.retention import Retention
from kvstore.seams import Admission
from kvstore.store import DeviceTier, TieredStore
from kvstore.tier import TierSpec

_MIN_STAGING_BYTES = 64 << 20
_STORED_MEANWHILE = 32


@dataclass(frozen=True)
class Parts:
    """What a store is put together with."""

    registry: Registry
    clock: Clock
    costs: CostBook
    admission: Admission
    retention: Retention = field(default_factory=Retention)


@dataclass(frozen=True)
class OpenStore:
    """A store, its arena, how many blocks each tier holds, and why those not there could not be opened."""

    store: TieredStore
    arena: Arena
    capacities: Mapping[str, int]
    degraded: Mapping[str, str]


def open_store(config: ServingConfig, model: LoadedModel, pool_bytes: int, parts: Parts) -> OpenStore:
    """Return the store over all tiers that can be opened. Blocks for a second to measure new ones."""
    block_bytes = model.kv_shape.block_bytes
    host_bytes = host_bytes_of(config.tiers)
    num_loaded_from = sum(setup.name != HOST for setup in config.tiers)
    is_cuda = model.device.type == "cuda"
    # What a GPU copies during a step is let go of after it, while as much may arrive.
    num_loaded = num_loaded_from * MOST_BLOCKS_ON_WAY * (2 if is_cuda else 1)
    num_staged = _STORED_MEANWHILE + MOST_WITNESSES + num_loaded
    staging_bytes = max(_MIN_STAGING_BYTES, num_staged * slot_stride(block_bytes))
    lock_pages = cuda_page_locker() if is_cuda else None
    budget_bytes = host_bytes + staging_bytes
    arena = Arena(
        budget_bytes, lock_pages=lock_pages, map_slab=MappedAhead(), spare_bytes=staging_bytes
    )  # fmt: skip
    item_bytes = model.kv_shape.dtype.itemsize
    specs, degraded = open_tiers(
        config.tiers, arena, item_bytes, parts.registry, parts.clock, parts.admission
    )
    _measure_unknown(specs, arena, block_bytes, parts)
    store = TieredStore(
        specs,
        arena,
        store_config(specs, config.default_ttl_s, config.tier_ttls_s, parts.retention),
        parts.clock,
        DeviceTier(pool_bytes, block_bytes),
        on_transfer=parts.costs.note_transfer,
    )
    capacities = {
        spec.config.name: spec.config.budget_bytes // spec.backend.footprint(block_bytes) for spec in specs
    }
    return OpenStore(store, arena, capacities, degraded)


def _measure_unknown(specs: list[TierSpec], arena: Arena, block_bytes: int, parts: Parts) -> None:
    known = parts.costs.loads(parts.clock.monotonic_s())
    unknown = {spec.config.name: spec.backend for spec in specs if spec.config.name not in {HOST, *known}}
    measure_tiers(unknown, arena, block_bytes, parts.costs, parts.clock)
