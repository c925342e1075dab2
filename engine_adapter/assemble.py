"""Puts a whole server together from frozen configuration: model, pool, tiers, store, engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from backends.device import DevicePool
from engine_adapter.calibrate import measure_copy, measure_steps
from engine_adapter.cost_file import CostFile
from engine_adapter.engine.attention import AttentionBackend
from engine_adapter.engine.attention_choice import choose_attention
from engine_adapter.engine.config import EngineConfig
from engine_adapter.engine.costs import CostBook
from engine_adapter.engine.decode_graphs import GraphSetup, graph_setup
from engine_adapter.engine.engine import Engine
from engine_adapter.engine.kv_forms import layout_for
from engine_adapter.engine.models import LoadedModel, load_model, read_tokenizer
from engine_adapter.engine.planner import NamedPolicy
from engine_adapter.engine.request import Mode
from engine_adapter.engine.runner import ModelRunner
from engine_adapter.opening import HOST, builtin_registry, host_bytes_of
from engine_adapter.serving_config import ServingConfig
from engine_adapter.tiers import Parts, open_store
from engine_adapter.watching import Watching, shadow_tiers, trace_file
from kvstore.clock import Clock
from kvstore.errors import ConfigError
from kvstore.registry import Kind, Registry
from kvstore.store import TieredStore
from kvstore.tier import DEVICE
from kvstore.upkeep import Pinned
from policies.admission import WorthLoading, whole_blocks_that_fit
from policies.planning import ReloadPolicy

_log = logging.getLogger(__name__)

_DEFAULT_CPU_POOL_BYTES = 1 << 30
_SHARE_OF_FREE_DEVICE_MEMORY = 0.85
_STORE_CLOSE_S = 10.0
_PIN_WAIT_S = 10.0


@dataclass(frozen=True)
class Serving:
    """A server at work. ``degraded`` says of each tier that it runs without why."""

    engine: Engine
    store: TieredStore
    tokenizer: PreTrainedTokenizerBase
    model_facts: LoadedModel
    degraded: Mapping[str, str]
    keep_costs: Callable[[], None]
    """Writes down what was learnt of costs; for when the engine is closed."""
    watching: Watching
    """What learns from what is served."""

    def clear(self, tier: str) -> None:
        """Drop all blocks of ``tier`` that nobody uses. Blocks for a step of the engine at most.

        Raises ``ConfigError`` for a tier that is not there.
        """
        if tier == DEVICE:
            self.engine.clear_pool()
        else:
            self.store.clear(tier)

    def pin(
        self,
        prompt_ids: Sequence[int],
        salt: str = "",
        lora: str | None = None,
        tenant: str = "",
        *,
        for_s: float | None = None,
        until_s: float | None = None,
        tiers: Sequence[str] | None = None,
    ) -> Pinned:
        """Pin what tiers have of a prompt's whole blocks; see ``TieredStore.pin``.

        Shared media are asked first, and what was just computed is written, which blocks for some seconds at
        most. Raises what ``TieredStore.pin`` and, for a prompt, ``Engine.submit`` raise, or ``ConfigError``
        for a prompt shorter than a block.
        """
        keys = self.engine.prefix_keys(prompt_ids, salt, lora, tenant)
        if not keys:
            block_tokens = self.model_facts.kv_shape.block_tokens
            raise ConfigError("prompt", f"is shorter than a block of {block_tokens} tokens")
        self.engine.flush(_PIN_WAIT_S)
        return self.store.pin(keys, for_s=for_s, until_s=until_s, tiers=tiers)

    def unpin(
        self,
        prompt_ids: Sequence[int],
        salt: str = "",
        lora: str | None = None,
        tenant: str = "",
        *,
        tiers: Sequence[str] | None = None,
    ) -> int:
        """Let a prompt's blocks be ordinary again; see ``TieredStore.unpin``."""
        return self.store.unpin(self.engine.prefix_keys(prompt_ids, salt, lora, tenant), tiers)

    def close(self) -> None:
        """End all requests, write what is queued and close the tiers; bounded in time."""
        if self.engine.close(_STORE_CLOSE_S):
            self.keep_costs()
        self.watching.close()
        self.store.close(_STORE_CLOSE_S)


def assemble(config: ServingConfig, registry: Registry | None = None, clock: Clock | None = None) -> Serving:
    """Build everything that ``config`` names; blocks while the model is read.

    A tier that cannot be opened is left out and told in ``degraded``. Raises ``ModelRefusedError``,
    ``ConfigError`` or ``PluginError``.
    """
    registry = registry or builtin_registry()
    registry.get(Kind.RELOAD, config.reload_policy)  # before the model is read, which takes long
    own = [setup.eviction for setup in config.tiers]
    for name in (config.device_eviction, *own, *config.shadow_policies):
        registry.get(Kind.EVICTION, name)
    model = load_model(
        config.model,
        block_tokens=config.block_tokens,
        device=device_named(config.device),
        compute_dtype=config.compute_dtype,
        kv_dtype=config.kv_dtype,
        digests=config.weight_digests,
        loras=config.loras,
        cpu_weights=config.cpu_weights,
    )
    return assemble_around(model, read_tokenizer(config.model), config, registry, clock)


def assemble_around(
    model: LoadedModel,
    tokenizer: PreTrainedTokenizerBase,
    config: ServingConfig,
    registry: Registry | None = None,
    clock: Clock | None = None,
) -> Serving:
    """Build everything that ``config`` names but for the model, which is in memory already.

    A tier that cannot be opened is left out and told in ``degraded``. Raises ``ConfigError`` or
    ``PluginError``.
    """
    clock = clock or Clock()
    registry = registry or builtin_registry()
    policy: ReloadPolicy = registry.get(Kind.RELOAD, config.reload_policy)()
    device_policy = registry.get(Kind.EVICTION, config.device_eviction)()
    attention = attention_for(model)
    engine_config = _engine_config(config)
    pool_bytes = _pool_bytes(config, model)
    cost_file = _cost_file(config, model)
    costs = CostBook(
        model.kv_shape.block_bytes, _memory_tier(config), cost_file.read(), config.max_batched_tokens
    )
    recording = trace_file(config)
    # The store comes last of what may fail: it takes the disk tier's folder.
    admission = WorthLoading(costs.is_never_faster) if policy.weighs_costs else whole_blocks_that_fit
    retention = config.retention.resolved(model, tokenizer)
    parts = Parts(registry, clock, costs, admission, retention)
    opened = open_store(config, model, pool_bytes, parts)
    store = opened.store
    pool = DevicePool(
        model.kv_shape,
        pool_bytes // model.kv_shape.block_bytes,
        model.device,
        device_policy,
        store.device_added,
        store.device_removed,
        clock,
        layout_for(attention.layout, model.kv_shape),
    )
    runner = ModelRunner(
        model.model, pool, attention, model.adapters, model.key_scales, _graph_setup(config, model)
    )
    if costs.compute() is None:
        is_compiled = model.device.type == "cuda"
        measure_steps(runner, pool, costs, clock, config.max_batched_tokens, is_compiled=is_compiled)
    measure_copy(pool, opened.arena, costs, clock)
    named = NamedPolicy(config.reload_policy, policy)
    watching = Watching(recording, shadow_tiers(config, registry, opened.capacities))
    engine = Engine(
        model, tokenizer, pool, runner, store, named, costs, engine_config, clock, watching.subscribers
    )
    return Serving(
        engine, store, tokenizer, model, opened.degraded, lambda: cost_file.write(costs.known()), watching
    )


def attention_for(model: LoadedModel) -> AttentionBackend:
    """Return the first attention that works for ``model``; logs why others do not."""
    choice = choose_attention(
        model.num_heads, model.kv_shape, model.compute_dtype, model.device, model.attention_kinds
    )
    for name, reason in choice.rejected.items():
        _log.warning("attention is not computed by %s: it %s", name, reason)
    return choice.attention


def _engine_config(config: ServingConfig) -> EngineConfig:
    return EngineConfig(
        max_batched_tokens=config.max_batched_tokens,
        max_sequences=config.max_sequences,
        max_waiting=config.max_waiting,
        load_deadline_s=config.load_deadline_s,
        mode=Mode(config.mode),
        verify_share=config.verify_share,
        recheck_share=config.recheck_share,
        recheck_memory_bytes=config.recheck_memory_bytes,
    )


def _graph_setup(config: ServingConfig, model: LoadedModel) -> GraphSetup | None:
    if not config.decode_graphs:
        return None
    return graph_setup(model.device, config.max_sequences, model.context_tokens)


def _cost_file(config: ServingConfig, model: LoadedModel) -> CostFile:
    facts = model.namespace.digest.hex(), str(model.device), str(config.max_batched_tokens)
    about = f"{model.namespace.label} on {model.device}, up to {config.max_batched_tokens} tokens a step"
    media = {setup.name: setup.medium for setup in config.tiers}
    return CostFile(config.cost_folder, *facts, about=about, media=media)


def _memory_tier(config: ServingConfig) -> str | None:
    return next((setup.name for setup in config.tiers if setup.name == HOST), None)


def _pool_bytes(config: ServingConfig, model: LoadedModel) -> int:
    """Return the device pool's budget.

    Raises ``ConfigError`` when it holds not even two blocks, or the memory cannot hold it.
    """
    if model.device.type == "cuda":
        free_bytes = torch.cuda.mem_get_info(model.device)[0]
        default_bytes = int(free_bytes * _SHARE_OF_FREE_DEVICE_MEMORY)
    else:
        host_bytes = host_bytes_of(config.tiers)
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


def device_named(name: str) -> str:
    """Return the device to compute on: ``name``, or for ``auto`` a GPU if there is one."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"
