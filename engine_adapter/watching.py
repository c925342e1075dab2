"""Who learns from what was served: the recording of a trace, and shadow policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine_adapter.opening import HOST
from engine_adapter.serving_config import ServingConfig
from engine_adapter.shadowing import Shadowing, ShadowStatistics
from engine_adapter.trace_file import RecordingStatus, TraceFile
from kvstore.registry import Kind, Registry
from kvstore.served import OnServed, ServedQueue
from kvstore.tier import WriteMode
from policies.shadows import ShadowTier


class Watching:
    """What watches one server, each on a thread of its own; ``file`` is closed with it."""

    def __init__(self, file: TraceFile | None, shadow_tiers: Mapping[str, ShadowTier]) -> None:
        self._file = file
        self._recorder = ServedQueue("trace recording", file.write, file.flush) if file else None
        self._shadowing = Shadowing(shadow_tiers) if shadow_tiers else None

    @property
    def subscribers(self) -> Sequence[OnServed]:
        """Who hears of each request."""
        return [watcher for watcher in (self._recorder, self._shadowing) if watcher is not None]

    def recording(self) -> RecordingStatus | None:
        """Return how far the recording has come; ``None``: there is none."""
        return self._file.status if self._file else None

    @property
    def num_unrecorded(self) -> int:
        """How many requests came faster than they could be recorded."""
        return self._recorder.num_dropped if self._recorder else 0

    def shadows(self) -> ShadowStatistics | None:
        """Return what shadow policies found; ``None``: there are none."""
        return self._shadowing.statistics() if self._shadowing else None

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits to be recorded, and end; call it when nothing is served any more. Idempotent."""
        if self._shadowing is not None:
            self._shadowing.close(timeout_s)
        if self._file is not None and self._recorder is not None and self._recorder.close(timeout_s):
            self._file.close()


def trace_file(config: ServingConfig) -> TraceFile | None:
    """Return the file in which requests are to be recorded, begun. Raises ``ConfigError``."""
    if config.record_trace is None:
        return None
    return TraceFile(
        config.record_trace, config.record_trace_bytes, config.block_tokens, config.default_ttl_s
    )


def shadow_tiers(
    config: ServingConfig, registry: Registry, capacities: Mapping[str, int]
) -> dict[str, ShadowTier]:
    """Return shadows of the tiers that are offered every block and that nobody else writes to.

    ``capacities`` are the blocks that each open tier holds.
    """
    tiers = {}
    for setup in config.tiers:
        is_offered_all = setup.name == HOST or setup.write_mode == WriteMode.THROUGH.value
        if not (config.shadow_policies and is_offered_all and capacities.get(setup.name)) or setup.address:
            continue
        names = dict.fromkeys((setup.eviction, *config.shadow_policies))
        makers = {name: registry.get(Kind.EVICTION, name) for name in names}
        ttl_s = config.ttl_s(setup.name)
        tiers[setup.name] = ShadowTier(makers, setup.eviction, capacities[setup.name], ttl_s)
    return tiers
