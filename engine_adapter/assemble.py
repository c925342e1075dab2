"""Puts a whole server together from frozen configuration: model, pool, tiers, store, engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from backends.builtin import register_builtin as register_backends
from backends.device import DevicePool
from backends.pagelock import cuda_page_locker
from engine_adapter.engine.attention import AttentionBackend
from engine_adapter.engine.attention_choice import choose_attention
from engine_adapter.engine.config import EngineConfig
from engine_adapter.engine.engine import Engine
from engine_adapter.engine.models import LoadedModel, load_model, read_tokenizer
from engine_adapter.engine.runner import ModelRunner
from engine_adapter.serving_config import ServingConfig, TierSetup
from kvstore.arena import Arena, slot_stride
from kvstore.clock import Clock
from kvstore.errors import BackendError, ConfigError
from kvstore.registry import Kind, Registry
from kvstore.store import DeviceTier, StoreConfig, TieredStore
from kvstore.tier import DEVICE, TierConfig, TierSpec, WriteMode
from policies.admission import whole_blocks_that_fit
from policies.builtin import register_builtin as register_policies

_log = logging.getLogger(__name__)

_HOST = "host"
_DEFAULT_CPU_POOL_BYTES = 1 << 30
_SHARE_OF_FREE_DEVICE_MEMORY = 0.85
_MIN_STAGING_BYTES = 64 << 20
_STAGED_BLOCKS = 32
_STORE_CLOSE_S = 10.0


@dataclass(frozen=True)
class Serving:
    """A server at work. ``degraded`` says of each tier that it runs without why."""

    engine: Engine
    store: TieredStore
    tokenizer: PreTrainedTokenizerBase
    model_facts: LoadedModel
    degraded: Mapping[str, str]

    def clear(self, tier: str) -> None:
        """Drop all blocks of ``tier`` that nobody uses. Blocks for a step of the engine at most.

        Raises ``ConfigError`` for a tier that is not there.
        """
        if tier == DEVICE:
            self.engine.clear_pool()
        else:
            self.store.clear(tier)

    def close(self) -> None:
        """End all requests, write what is queued and close the tiers; bounded in time."""
        self.engine.close(_STORE_CLOSE_S)
        self.store.close(_STORE_CLOSE_S)


def assemble(config: ServingConfig, registry: Registry | None = None, clock: Clock | None = None) -> Serving:
    """Build everything that ``config`` names; blocks while the model is read.

    A tier that cannot be opened is left out and told in ``degraded``. Raises ``ModelRefusedError``,
    ``ConfigError`` or ``PluginError``.
    """
    clock = clock or Clock()
    registry = registry or builtin_registry()
    reload_policy = registry.get(Kind.RELOAD, config.reload_policy)()
    device_policy = registry.get(Kind.EVICTION, config.device_eviction)()
    model = load_model(
        config.model,
        block_tokens=config.block_tokens,
        device=_device(config.device),
        compute_dtype=config.compute_dtype,
        kv_dtype=config.kv_dtype,
        digests=config.weight_digests,
    )
    tokenizer = read_tokenizer(config.model)
    attention = _choose_attention(model)
    engine_config = _engine_config(config)
    pool_bytes = _pool_bytes(config, model)
    # The store comes last of what may fail: it takes the disk tier's folder.
    store, degraded = _make_store(config, model, pool_bytes, registry, clock)
    pool = DevicePool(
        model.kv_shape,
        pool_bytes // model.kv_shape.block_bytes,
        model.device,
        device_policy,
        store.device_added,
        store.device_removed,
        clock,
    )
    runner = ModelRunner(model.model, pool, attention)
    engine = Engine(model, tokenizer, pool, runner, store, reload_policy, engine_config, clock)
    return Serving(engine, store, tokenizer, model, degraded)


def builtin_registry() -> Registry:
    """Return a registry with everything that comes with the project."""
    registry = Registry()
    register_backends(registry)
    register_policies(registry)
    return registry


def _choose_attention(model: LoadedModel) -> AttentionBackend:
    choice = choose_attention(model.num_heads, model.kv_shape, model.compute_dtype, model.device)
    for name, reason in choice.rejected.items():
        _log.warning("attention is not computed by %s: it %s", name, reason)
    return choice.attention


def _engine_config(config: ServingConfig) -> EngineConfig:
    return EngineConfig(
        max_batched_tokens=config.max_batched_tokens,
        max_sequences=config.max_sequences,
        max_waiting=config.max_waiting,
        load_deadline_s=config.load_deadline_s,
    )


def _make_store(
    config: ServingConfig, model: LoadedModel, pool_bytes: int, registry: Registry, clock: Clock
) -> tuple[TieredStore, dict[str, str]]:
    """Return the store over all tiers that can be opened, and why the others cannot."""
    block_bytes = model.kv_shape.block_bytes
    host_bytes = sum(setup.budget_bytes for setup in config.tiers if setup.name == _HOST)
    staging_bytes = max(_MIN_STAGING_BYTES, _STAGED_BLOCKS * slot_stride(block_bytes))
    arena = Arena(
        host_bytes + staging_bytes, lock_pages=cuda_page_locker() if model.device.type == "cuda" else None
    )
    specs, degraded = [], dict[str, str]()
    for setup in config.tiers:
        try:
            specs.append(_tier_spec(setup, registry, arena))
        except BackendError as error:
            degraded[setup.name] = f"runs without this tier: {error.reason}"
    store_config = StoreConfig(default_ttl_s=config.default_ttl_s)
    store = TieredStore(specs, arena, store_config, clock, DeviceTier(pool_bytes, block_bytes))
    return store, degraded


def _tier_spec(setup: TierSetup, registry: Registry, arena: Arena) -> TierSpec:
    tier_config = TierConfig(setup.name, setup.budget_bytes, WriteMode(setup.write_mode))
    policy = registry.get(Kind.EVICTION, setup.eviction)()
    options = {"arena": arena} if setup.name == _HOST else {"path": setup.path}
    backend = registry.get(Kind.BACKEND, setup.name)(**options)
    return TierSpec(tier_config, backend, policy, whole_blocks_that_fit)


def _pool_bytes(config: ServingConfig, model: LoadedModel) -> int:
    """Return the device pool's budget.

    Raises ``ConfigError`` when it holds not even two blocks, or the memory cannot hold it.
    """
    if model.device.type == "cuda":
        free_bytes = torch.cuda.mem_get_info(model.device)[0]
        default_bytes = int(free_bytes * _SHARE_OF_FREE_DEVICE_MEMORY)
    else:
        host_bytes = sum(setup.budget_bytes for setup in config.tiers if setup.name == _HOST)
        free_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") - host_bytes
        default_bytes = _DEFAULT_CPU_POOL_BYTES
    pool_bytes = default_bytes if config.device_bytes is None else config.device_bytes
    if pool_bytes > free_bytes:
        reason = f"{pool_bytes} is more than the {free_bytes} bytes of memory that are left; choose less"
        raise ConfigError("device_bytes", reason)
    least = 2 * model.kv_shape.block_bytes
    if pool_bytes < least:
        raise ConfigError(
            "device_bytes", f"{pool_bytes} holds less than two blocks of this model; give {least} or more"
        )
    return pool_bytes


def _device(name: str) -> str:
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"
