"""SGLang's storage interface over a store of ours."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolName, PoolTransferResult

from engine_adapter.faults import Faults
from engine_adapter.sglang.counts import Counts
from engine_adapter.sglang.host_pools import HostPools, Order
from engine_adapter.sglang.identity import refuse_unfit
from engine_adapter.sglang.memory import of_tensor
from engine_adapter.sglang.pool_hits import PoolHits, leading
from engine_adapter.sglang.served import Served
from engine_adapter.sglang.settings import AdapterSettings

_log = logging.getLogger(__name__)

_CLOSE_S = 10.0


class PrefixdHiCache(HiCacheStorage):  # type: ignore[misc]  # SGLang is not there where types are checked
    """Pages of SGLang's host pools, kept in a store. Thread-safe; nothing raises once it is attached.

    With ``interface_v1`` in the extra configuration pages are copied between the store and the host pools'
    own memory; without it SGLang copies each of them once more.
    """

    def __init__(self, storage_config: Any, _kwargs: Mapping[str, Any] | None = None) -> None:
        """Read the settings; the store is opened when the pools are registered. Raises ``ConfigError``."""
        extra = storage_config.extra_config or {}
        settings = AdapterSettings.parse(extra)
        refuse_unfit(storage_config, settings)
        order = Order.BY_ADDRESS if extra.get("interface_v1") else Order.FLAT
        self.counts = Counts()
        self.faults = Faults(_log)
        self._pools = HostPools(storage_config, settings, order, self.counts, Served.here)
        self._is_metered = bool(storage_config.enable_storage_metrics)

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Take in the pool of keys and values. Raises ``ConfigError``."""
        super().register_mem_pool_host(mem_pool_host)
        self._pools.open(mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Take in a pool that some models have beside that of keys and values."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self.faults.caught(lambda: self._pools.add(_name(host_pool_name), host_pool), None)

    def on_host_pools_registered(self) -> None:
        """Open the store, all pools being known. Raises ``ConfigError`` or ``AccessError``."""
        super().on_host_pools_registered()
        self._pools.begin()

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:  # noqa: ARG002 - the interface is SGLang's
        self._tell(time.monotonic())
        return self.faults.caught(lambda: leading(self._pools.kv.present(keys)), 0)

    def batch_get_v1(
        self,
        keys: list[str],
        host_indices: torch.Tensor,
        extra_info: Any = None,  # noqa: ARG002 - the interface is SGLang's
    ) -> list[bool]:
        def load() -> list[bool]:
            return self._pools.kv.load(keys, self._pools.at(host_indices, len(keys)))

        return self.faults.caught(load, [False] * len(keys))

    def batch_set_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        def put() -> list[bool]:
            before = getattr(extra_info, "prefix_keys", None) or ()
            return self._pools.kv.put(keys, self._pools.at(host_indices, len(keys)), before)

        return self.faults.caught(put, [False] * len(keys))

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        return self.batch_get([key], [target_location], target_sizes)[0]

    def batch_get(
        self,
        keys: list[str],
        target_locations: Any = None,
        target_sizes: Any = None,  # noqa: ARG002 - the interface is SGLang's
    ) -> list[torch.Tensor | None]:
        def load() -> list[torch.Tensor | None]:
            self._pools.require(Order.FLAT)
            are_loaded = self._pools.kv.load(keys, [[of_tensor(target)] for target in target_locations])
            pairs = zip(target_locations, are_loaded, strict=True)
            return [target if is_loaded else None for target, is_loaded in pairs]

        return self.faults.caught(load, [None] * len(keys))

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [target_location if value is None else value], None, target_sizes)

    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,  # noqa: ARG002 - the interface is SGLang's
    ) -> bool:
        def put() -> bool:
            self._pools.require(Order.FLAT)
            pages = target_locations if values is None else values
            whole = [page.contiguous() for page in pages]
            return all(self._pools.kv.put(keys, [[of_tensor(page)] for page in whole]))

        return self.faults.caught(put, otherwise=False)

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: Sequence[Any] | None = None,
        extra_info: Any = None,  # noqa: ARG002 - the interface is SGLang's
    ) -> PoolTransferResult:
        def find() -> PoolTransferResult:
            hits = PoolHits(PoolName.KV, self._pools.kv.present(keys))
            reach = keys[: hits.num_pages]
            for each in pool_transfers or ():
                is_here = self._pools.present(_name(each.name), reach)
                hits.narrow(each.name, str(each.hit_policy.value), is_here, len(each.keys or ()))
            return PoolTransferResult(hits.num_pages, hits.of_each_pool, hits.restorable)

        self._tell(time.monotonic())
        return self.faults.caught(find, PoolTransferResult.empty())

    def batch_get_v2(
        self,
        transfers: Sequence[Any],
        extra_info: Any = None,  # noqa: ARG002 - the interface is SGLang's
    ) -> dict[Any, list[bool]]:
        return {each.name: self._moved(self._pools.load, each) for each in transfers}

    def batch_set_v2(
        self,
        transfers: Sequence[Any],
        extra_info: Any = None,  # noqa: ARG002 - the interface is SGLang's
    ) -> dict[Any, list[bool]]:
        return {each.name: self._moved(self._pools.put, each) for each in transfers}

    def clear(self) -> None:
        """Remove everything that is not in use, of all who use the store."""
        self.faults.caught(self._pools.clear, None)

    def get_stats(self) -> Any:
        """Return what was moved since the last call, for SGLang's metrics; ``None`` where it keeps none."""
        if not self._is_metered:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics  # noqa: PLC0415 - imports much

        loaded, stored = (self.counts.take_moves(way) for way in ("loaded", "stored"))
        return StorageMetrics(
            prefetch_pgs=[move.num_pages for move in loaded],
            backup_pgs=[move.num_pages for move in stored],
            prefetch_bandwidth=[move.gb_per_s for move in loaded],
            backup_bandwidth=[move.gb_per_s for move in stored],
        )

    def close(self) -> None:
        """Write what is queued and close the store; bounded in time. SGLang calls it when it detaches."""
        self.faults.caught(lambda: self._pools.close(_CLOSE_S), None)
        self._tell(math.inf)

    def _tell(self, now_s: float) -> None:
        news = self.counts.news(now_s)
        if news:
            _log.info("prefixd: %s", news)

    def _moved(self, move: Any, transfer: Any) -> list[bool]:
        keys = transfer.keys or []
        name = _name(transfer.name)
        return self.faults.caught(lambda: move(name, keys, transfer.host_indices), [False] * len(keys))


def _name(pool_name: Any) -> str:
    return str(getattr(pool_name, "value", pool_name))
