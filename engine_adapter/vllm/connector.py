"""vLLM's KV connector over the store: thin, and never in vLLM's way."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import vllm
from vllm.distributed.kv_events import KVCacheEvent
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

from engine_adapter.faults import Faults
from engine_adapter.vllm.kv_events import kv_event
from engine_adapter.vllm.opening import OpenStores
from engine_adapter.vllm.orders import Step, Told
from engine_adapter.vllm.pool import Pool
from engine_adapter.vllm.scheduler import SchedulerSide
from engine_adapter.vllm.settings import AdapterSettings
from engine_adapter.vllm.sides import open_scheduler_side, open_worker_side
from engine_adapter.vllm.statistics import PrefixdMetrics, PrefixdStats
from engine_adapter.vllm.worker import WorkerSide

_log = logging.getLogger("vllm.prefixd")  # below vLLM's own, whose settings hold for it

_STORES = OpenStores()
"""Both sides of an engine's connector use one store, and vLLM makes each by itself."""


@dataclass
class StepMetadata(KVConnectorMetadata):
    """The orders of a step, as vLLM sends them to the workers."""

    step: Step = field(default_factory=Step)


@dataclass
class ToldMetadata(KVConnectorWorkerMetadata):
    """What workers tell of a step, as vLLM sends it back."""

    told: Told = field(default_factory=Told)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Return what both tell."""
        if isinstance(other, ToldMetadata):
            self.told.add(other.told)
        return self


class PrefixdConnector(KVConnectorBase_V1):
    """Keeps prefixes of vLLM's requests in a store, and gives them back.

    ``kv_connector_extra_config`` holds the settings (``AdapterSettings``). What cannot be served is refused
    at the start with a ``ConfigError``. After that nothing raises: a fault is a miss, counted, and told in
    the log now and then.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self._settings = AdapterSettings.parse(transfer.kv_connector_extra_config)
        self._engine = str(transfer.engine_id)
        self._faults = Faults(_log)
        self._worker: WorkerSide | None = None
        self.scheduler_side: SchedulerSide | None = None
        # A load that is given up is computed; to fail its request, vLLM's default, would never do.
        transfer.kv_load_failure_policy = "recompute"
        if role == KVConnectorRole.SCHEDULER:
            self.scheduler_side = open_scheduler_side(
                _STORES, vllm_config, kv_cache_config, self._settings, vllm.__version__, self._faults
            )

    @property
    def requires_kv_delivery(self) -> bool:
        """Say no: a block that was not stored is a miss later, and nobody need compute it for that."""
        return False

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        pool = Pool(kv_caches, int(self._kv_cache_config.num_blocks))
        self._worker = open_worker_side(_STORES, self._vllm_config, pool, self._settings)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:  # noqa: ARG002  vLLM's interface
        if self._worker is not None:
            self._worker.start_loads(self._step(), self._faults)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Have nothing to wait for: loads are whole before a request computes."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Store nothing yet: blocks are stored when all their layers are there."""

    def wait_for_save(self) -> None:
        worker = self._worker
        if worker is not None:
            self._faults.caught(lambda: worker.store_blocks(self._step()), None)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        if self._worker is None:
            return None, None
        return None, self._worker.finished_loads(finished_req_ids, self._faults)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set() if self._worker is None else self._worker.take_failed()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        return None if self._worker is None else ToldMetadata(self._worker.take_told(self._faults.take()))

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        if self.scheduler_side is not None:
            # Other ranks, and steps that are planned while one is made, would compute with what has failed.
            is_alone = int(self._vllm_config.parallel_config.tensor_parallel_size) == 1
            is_overlapping = bool(self._vllm_config.scheduler_config.async_scheduling)
            self.scheduler_side.promiser.may_wait = is_alone and not is_overlapping

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        side = self.scheduler_side
        if side is None:
            return 0, False
        nothing: tuple[int | None, bool] = (0, False)
        return self._faults.caught(lambda: side.num_to_load(request, num_computed_tokens), nothing)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        # What is promised here must be loaded or be said to have failed, so a fault may not be passed over.
        if self.scheduler_side is not None:
            (block_ids,) = blocks.get_block_ids()
            self.scheduler_side.allocated(request, block_ids, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return StepMetadata(
            Step() if self.scheduler_side is None else self.scheduler_side.plan_step(scheduler_output)
        )

    def update_connector_output(self, connector_output: Any) -> None:
        side, told = self.scheduler_side, connector_output.kv_connector_worker_meta
        if side is not None:
            if spoilt := side.spoilt(connector_output.invalid_block_ids):
                self._kv_cache_manager.evict_blocks(spoilt)
            self._faults.caught(
                lambda: side.note_output(
                    connector_output.finished_recving or (),
                    connector_output.invalid_block_ids,
                    told.told if isinstance(told, ToldMetadata) else Told(),
                ),
                None,
            )

    def request_finished(
        self,
        request: Any,
        block_ids: list[int],  # noqa: ARG002  vLLM's interface
    ) -> tuple[bool, dict[str, Any] | None]:
        side = self.scheduler_side
        if side is not None:
            self._faults.caught(lambda: side.ended(request), None)
        return False, None

    def take_events(self) -> Iterable[KVCacheEvent]:
        side = self.scheduler_side
        if side is None:
            return ()
        step, is_shared = int(self._vllm_config.cache_config.block_size), self._settings.is_shared
        return self._faults.caught(
            lambda: [kv_event(event, step, is_shared=is_shared) for event in side.take_events()], []
        )

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        if self.scheduler_side is None:
            return None  # workers tell theirs with their steps
        if num_faults := self._faults.take():
            self.scheduler_side.counts.count("faults", num_faults)
        return PrefixdStats(self.scheduler_side.counts.take())

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats:
        return PrefixdStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> PrefixdMetrics:
        return PrefixdMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def reset_cache(self) -> bool | None:
        side = self.scheduler_side
        return self._faults.caught(lambda: side is None or side.forget_all(secrets.token_hex(8)), False)

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()
        if self.scheduler_side is not None:
            self.scheduler_side.close()
        if self._worker is not None or self.scheduler_side is not None:
            _STORES.close(self._engine)
        self._worker = self.scheduler_side = None

    def _step(self) -> Step:
        metadata = self._get_connector_metadata()
        return metadata.step if isinstance(metadata, StepMetadata) else Step()
