"""The connector's counts as vLLM logs and exports them."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from engine_adapter.vllm.counts import NAMES


class PrefixdStats(KVConnectorStats):
    """Counts of an interval, by name."""

    def reset(self) -> None:
        """Begin anew."""
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Return the sums of both."""
        for name, amount in other.data.items():
            self.data[name] = self.data.get(name, 0) + amount
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return what is logged."""
        return {name: self.data[name] for name in NAMES if name in self.data}

    def is_empty(self) -> bool:
        """Say whether nothing was counted."""
        return not self.data


class PrefixdMetrics(KVConnectorPromMetrics):
    """One Prometheus counter for each name."""

    def __init__(
        self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: self._counter_cls(name=f"vllm:prefixd_{name}", documentation=about, labelnames=labelnames)
            for name, about in NAMES.items()
        }
        # Each shows 0 from the start, so that a rate of it can be told from the first count on.
        for values in per_engine_labelvalues.values():
            for counter in self._counters.values():
                counter.labels(*values)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add an interval's counts."""
        for name, amount in transfer_stats_data.items():
            if name in self._counters:
                self._counters[name].labels(*self.per_engine_labelvalues[engine_idx]).inc(amount)
