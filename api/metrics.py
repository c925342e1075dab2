"""What Prometheus reads. Each service has a registry of its own; a scrape reads the live statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from api.families import counter, counters, gauge, gauges
from api.store_metrics import store_metrics
from engine_adapter.assemble import Serving
from engine_adapter.engine.audit import Audit
from engine_adapter.engine.events import Delta, Event, Planned, Usage
from engine_adapter.engine.reporting import EngineStatistics
from engine_adapter.engine.request import Mode
from engine_adapter.shadowing import ShadowStatistics

_WAIT_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)
_TOKEN_BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5)
_RATIO_BUCKETS = (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.35, 1.5, 2, 3, 5, 10)


class Metrics:
    """Keeps the times that requests tell, and reports what the engine and the store count themselves."""

    def __init__(self, serving: Serving) -> None:
        self._registry = CollectorRegistry()
        self._ttft_s = self._histogram("ttft", "Time to the first token, from submission.", _WAIT_BUCKETS_S)
        self._queue_s = self._histogram("queue", "Time from submission to admission.", _WAIT_BUCKETS_S)
        self._load_s = self._histogram("load", "Time a request's loads took, if it had any.", _WAIT_BUCKETS_S)
        self._itl_s = self._histogram("itl", "Time between two tokens of a request.", _TOKEN_BUCKETS_S)
        self._predicted_s = self._histogram(
            "plan_predicted", "Time from the first plan to the first token, as predicted.", _WAIT_BUCKETS_S
        )
        self._actual_s = self._histogram(
            "plan_actual", "Time from the first plan to the first token, as it was.", _WAIT_BUCKETS_S
        )
        self._actual_over_predicted = Histogram(
            "prefixd_plan_actual_over_predicted",
            "The one over the other.",
            buckets=_RATIO_BUCKETS,
            registry=self._registry,
        )
        self._registry.register(_LiveStatistics(serving))

    def observe(self, event: Event) -> None:
        """Note the times of one event of a request; quick, from any thread."""
        if not isinstance(event, Delta):
            self._observe_usage(event.usage)
        elif event.since_previous_s is not None:
            self._itl_s.observe(event.since_previous_s)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def _observe_usage(self, usage: Usage) -> None:
        load_s = usage.load_s or None
        for histogram, value in (
            (self._ttft_s, usage.ttft_s),
            (self._queue_s, usage.queue_s),
            (self._load_s, load_s),
        ):
            if value is not None:
                histogram.observe(value)
        if usage.planned is not None:
            self._observe_plan(usage.planned)

    def _observe_plan(self, planned: Planned) -> None:
        if planned.actual_s is None:
            return
        self._predicted_s.observe(planned.expected_s)
        self._actual_s.observe(planned.actual_s)
        if planned.expected_s > 0:
            self._actual_over_predicted.observe(planned.actual_s / planned.expected_s)

    def _histogram(self, name: str, description: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"prefixd_{name}_seconds", description, buckets=buckets, registry=self._registry)


class _LiveStatistics(Collector):
    """Reads the engine's and the store's statistics whenever somebody scrapes."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        counts = self._serving.engine.statistics()
        yield from _engine_metrics(counts)
        yield from _plan_metrics(counts, self._serving.engine.mode)
        yield from store_metrics(self._serving.store)
        yield from _audit_metrics(self._serving.engine.rechecker.facts())
        if shadows := self._serving.watching.shadows():
            yield from _shadow_metrics(shadows)


def _engine_metrics(counts: EngineStatistics) -> Iterator[Metric]:
    yield gauge("requests_running", "Requests that compute.", counts.num_running)
    yield gauge("requests_waiting", "Requests that wait for their turn.", counts.num_waiting)
    yield counters("requests", "Requests that ended.", "reason", counts.requests)
    yield counters(
        "prompt_tokens", "Prompt tokens, by where they came from.", "source", counts.tokens_by_source
    )
    yield counter("completion_tokens", "Tokens that were generated.", counts.completion_tokens)
    yield counter("steps", "Steps of the engine.", counts.num_steps)
    yield counter("preemptions", "Requests sent back for want of blocks.", counts.num_preempted)
    yield counter("taken_over_blocks", "Blocks computed because their load missed.", counts.num_taken_over)
    yield counter("clamped_keys", "Numbers of keys beyond what their 8 bits hold.", counts.num_clamped)
    yield gauge(
        "device_blocks_available",
        "Blocks of the device that are free or cached.",
        counts.num_available_blocks,
    )


def _plan_metrics(counts: EngineStatistics, mode: Mode) -> Iterator[Metric]:
    costs = counts.costs
    yield counters("plans", "Requests that something could be loaded for.", "chosen", counts.plans)
    yield gauge(
        "saved_seconds", "What loading has saved against computing, or cost (negative).", counts.saved_s
    )
    yield counter("slower_requests", "Requests that loading made slower.", counts.num_slower)
    yield counter("verified_blocks", "Blocks that were computed to compare.", counts.num_verified)
    yield counter("wrong_blocks", "Blocks that were found to be wrong so.", counts.num_found_wrong)
    yield gauges("mode", "1: the mode of requests that name none.", _one_of(mode), "mode")
    if costs.prefill_tokens_per_s is not None:
        yield gauge("prefill_tokens_per_second", "Tokens of a full step.", costs.prefill_tokens_per_s)
    latencies = {tier: cost.latency_s for tier, cost in costs.loads.items()}
    yield gauges("tier_load_latency_seconds", "Time until a tier's next load begins to come.", latencies)
    rates = {tier: cost.bytes_per_s for tier, cost in costs.loads.items()}
    yield gauges("tier_load_bytes_per_second", "How fast a tier's loads come then, decoded.", rates)


def _audit_metrics(audit: Audit) -> Iterator[Metric]:
    yield gauge("audit_share", "Share of the idle time that the audit may take.", audit.share)
    yield counter("audit_blocks", "Copies of blocks computed once more and compared.", audit.num_compared)
    yield counter("audit_bytes", "Their bytes.", audit.compared_bytes)
    yield counter("audit_wrong_blocks", "Those of them that differed.", audit.num_wrong)
    yield counter("audit_failures", "Attempts that broke off with an error.", audit.num_failed)
    yield counter("audit_seconds", "Time that it took.", audit.spent_s)
    yield counter("idle_seconds", "Time in which there were no requests.", audit.idle_s)
    yield gauge("audit_coverage", "Share of the copies stored now that were compared.", audit.coverage)
    yield gauge("audit_memory_bytes", "Memory for tokens of served prompts.", audit.memory_bytes)


def _one_of(mode: Mode) -> dict[str, float]:
    return {other.value: float(other is mode) for other in Mode}


def _shadow_metrics(shadows: ShadowStatistics) -> Iterator[Metric]:
    tiers = shadows.tiers
    ratios = GaugeMetricFamily(
        "prefixd_shadow_hit_ratio",
        "Share of the last prompts' tokens that a policy would have hit, as estimated.",
        labels=["tier", "policy"],
    )
    for tier, report in tiers.items():
        for policy, ratio in report.hit_ratios.items():
            ratios.add_metric([tier, policy], ratio)
    yield ratios
    regrets = {tier: report.regret for tier, report in tiers.items()}
    yield gauges("shadow_regret", "How much more the best of them would have hit than the live one.", regrets)
    rates = {tier: report.rate for tier, report in tiers.items()}
    yield gauges("shadow_sample_rate", "Share of the keys that the estimate is made from.", rates)
    yield gauge("shadow_core_share", "Share of a core that shadows took lately.", shadows.core_share)
    yield counter(
        "shadow_dropped", "Requests that shadows did not see, for want of time.", shadows.num_dropped
    )
