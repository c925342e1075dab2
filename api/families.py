"""Metrics of this project, as Prometheus' families."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


def gauge(name: str, description: str, value: float) -> Metric:
    """Return one number that goes up and down."""
    return GaugeMetricFamily(f"prefixd_{name}", description, value)


def counter(name: str, description: str, value: float) -> Metric:
    """Return one number that only grows."""
    return CounterMetricFamily(f"prefixd_{name}", description, value)


def gauges(name: str, description: str, values: Mapping[str, float], label: str = "tier") -> Metric:
    """Return such numbers, told apart by a label."""
    family = GaugeMetricFamily(f"prefixd_{name}", description, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def counters(name: str, description: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return such numbers, told apart by a label."""
    family = CounterMetricFamily(f"prefixd_{name}", description, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
