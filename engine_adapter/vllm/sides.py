"""Puts the two sides of a connector together from vLLM's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine_adapter.cost_file import CostFile
from engine_adapter.engine.costs import CostBook
from engine_adapter.faults import Faults
from engine_adapter.opening import HOST, builtin_registry
from engine_adapter.vllm.announcing import Announcer
from engine_adapter.vllm.counts import Counts
from engine_adapter.vllm.deciding import Decider, Sizes
from engine_adapter.vllm.identity import Scopes, engine_namespace, remembered_digests
from engine_adapter.vllm.opening import OpenStores
from engine_adapter.vllm.pool import Pool
from engine_adapter.vllm.probing import Prober
from engine_adapter.vllm.promising import Promiser
from engine_adapter.vllm.scheduler import SchedulerSide
from engine_adapter.vllm.settings import AdapterSettings
from engine_adapter.vllm.worker import WorkerSide
from kvstore.errors import ConfigError
from kvstore.namespace import Namespace
from kvstore.registry import Kind

_IN_THIS_PROCESS = "uni"
_ON_ONE_MACHINE = {_IN_THIS_PROCESS, "mp"}


def open_worker_side(
    stores: OpenStores, vllm_config: Any, pool: Pool, settings: AdapterSettings
) -> WorkerSide:
    """Open the store, and return the side of one worker. Raises ``ConfigError``."""
    parallel = vllm_config.parallel_config
    size, backend = int(parallel.tensor_parallel_size), str(parallel.distributed_executor_backend)
    rank, engine = int(parallel.rank) % size, str(vllm_config.kv_transfer_config.engine_id)
    if backend not in _ON_ONE_MACHINE and not settings.is_shared:
        raise ConfigError("store", f"workers by {backend} may be on several machines: run `prefixd serve`")
    if rank:
        return WorkerSide(stores.join(engine, settings, pool.block_bytes), pool, rank, settings)
    is_served = backend != _IN_THIS_PROCESS
    store = stores.open(engine, settings, pool.block_bytes, is_served=is_served)
    return WorkerSide(store, pool, rank, settings)


def open_scheduler_side(
    stores: OpenStores,
    vllm_config: Any,
    kv_cache_config: Any,
    settings: AdapterSettings,
    version: str,
    faults: Faults,
) -> SchedulerSide:
    """Return the scheduler's side. Reads the weights' files. Raises ``ConfigError`` or ``PluginError``."""
    namespace = engine_namespace(vllm_config, kv_cache_config, settings, version)
    sizes = _sizes(vllm_config, kv_cache_config, namespace)
    engine = str(vllm_config.kv_transfer_config.engine_id)
    store = stores.join(engine, settings, sizes.block_bytes)
    kept = _cost_file(namespace, settings)
    memory_tier = None if settings.is_shared else HOST
    costs = CostBook(sizes.block_bytes, memory_tier, kept.read(), sizes.chunk_tokens)
    policy = builtin_registry().get(Kind.RELOAD, settings.reload_policy)()
    events = vllm_config.kv_events_config
    promiser = Promiser(
        store,
        Decider(policy, costs, sizes),
        Prober(store, sizes.block_bytes),
        settings,
        Counts(),
        Announcer(store) if events is not None and events.enable_kv_cache_events else None,
    )
    return SchedulerSide(namespace, Scopes(remembered_digests(settings)), promiser, kept, faults)


def _sizes(vllm_config: Any, kv_cache_config: Any, namespace: Namespace) -> Sizes:
    (group,) = kv_cache_config.kv_cache_groups
    spec = group.kv_cache_spec
    # Where layers differ in size, the spec is all of theirs together.
    num_pages = 1 if hasattr(spec, "kv_cache_specs") else len(group.layer_names)
    block_bytes = int(spec.page_size_bytes) * num_pages
    chunk = int(vllm_config.scheduler_config.max_num_batched_tokens)
    return Sizes(namespace.block_tokens, block_bytes, chunk)


def _cost_file(namespace: Namespace, settings: AdapterSettings) -> CostFile:
    medium = settings.store or settings.disk_path
    return CostFile(
        Path(settings.cache_path).expanduser() / "costs",
        namespace.digest.hex(),
        about=namespace.label,
        media={"disk": medium, HOST: medium},
    )
