"""What the history reads of a store and an engine, and the series that it makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from api.history import Reading, Sample
from engine_adapter.engine.time_buckets import quantile_s
from kvstore.statistics import Count, StoreStatistics

if TYPE_CHECKING:  # a store alone needs no torch
    from engine_adapter.engine.reporting import EngineStatistics

_COMPUTED = "computed"
_TIER_BYTES = "tier_bytes"
_COUNTED = {
    "requests": "requests",
    "prompt_tokens": "tokens",
    "saved": "seconds",
    "lookup_blocks": "blocks",
    "lookup_hit_blocks": "blocks",
    Count.LOADED_BYTES: "bytes",
    Count.STORED_BYTES: "bytes",
}
"""The unit of each number that grows."""
_QUANTILES = {"ttft_p50": 0.5, "ttft_p95": 0.95}


@dataclass(frozen=True, slots=True)
class Series:
    """One number over time: ``values`` has one for each sample, ``None`` where there was nothing to tell of.

    ``label`` is the tier or the source it is about; ``None``: the whole.
    """

    name: str
    unit: str
    label: str | None
    values: Sequence[float | None]


def store_reading(store: StoreStatistics) -> Reading:
    """Return what the history takes from a store."""
    counts: dict[str, float] = {
        "lookup_blocks": store.num_blocks_wanted,
        "lookup_hit_blocks": store.num_blocks_found,
    }
    for tier in store.tiers:
        for name in (Count.LOADED_BYTES, Count.STORED_BYTES):
            if name in tier.counts:
                counts[_labelled(name, tier.name)] = tier.counts[name]
    levels = {_labelled(_TIER_BYTES, tier.name): float(tier.used_bytes) for tier in store.tiers}
    return Reading(counts, levels)


def serving_reading(engine: EngineStatistics, store: StoreStatistics) -> Reading:
    """Return what it takes from a server with a model."""
    reading = store_reading(store)
    counts = {"requests": float(sum(engine.requests.values())), "saved": engine.saved_s, **reading.counts}
    for source, num in engine.tokens_by_source.items():
        counts[_labelled("prompt_tokens", source)] = num
    return replace(reading, counts=counts, times=engine.ttft_by_source)


def series_of(samples: Sequence[Sample]) -> list[Series]:
    """Return what samples tell, in one order whatever they hold."""
    names = sorted({name for sample in samples for name in sample.counts})
    told = [
        Series("hit_ratio", "ratio", None, [_hit_ratio(sample.counts) for sample in samples]),
        Series("block_hit_ratio", "ratio", None, [_block_hit_ratio(sample.counts) for sample in samples]),
    ]
    told += _times(samples)
    for name in names:
        plain, label = _parts(name)
        told.append(Series(plain, _COUNTED[plain], label, [sample.counts.get(name) for sample in samples]))
    for name in sorted({name for sample in samples for name in sample.levels}):
        plain, label = _parts(name)
        told.append(Series(plain, "bytes", label, [sample.levels.get(name) for sample in samples]))
    return [series for series in told if any(value is not None for value in series.values)]


def _times(samples: Sequence[Sample]) -> Iterator[Series]:
    sources = sorted({source for sample in samples for source in sample.times})
    for name, share in _QUANTILES.items():
        for source in sources:
            values = [quantile_s(sample.times.get(source, ()), share) for sample in samples]
            yield Series(name, "seconds", source, values)


def _hit_ratio(counts: Mapping[str, float]) -> float | None:
    tokens = {label: num for name, num in counts.items() if (label := _label_of(name, "prompt_tokens"))}
    whole = sum(tokens.values())
    return 1 - tokens.get(_COMPUTED, 0.0) / whole if whole else None


def _block_hit_ratio(counts: Mapping[str, float]) -> float | None:
    whole = counts.get("lookup_blocks", 0.0)
    return counts.get("lookup_hit_blocks", 0.0) / whole if whole else None


def _labelled(name: str, label: str) -> str:
    return f"{name}/{label}"


def _parts(name: str) -> tuple[str, str | None]:
    plain, _, label = name.partition("/")
    return plain, label or None


def _label_of(name: str, wanted: str) -> str | None:
    plain, label = _parts(name)
    return label if plain == wanted else None
