"""Opens tiers by name, from what is registered; needs no engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine_adapter.serving_config import TierSetup
from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.errors import BackendError
from kvstore.registry import Kind, Registry
from kvstore.seams import Admission
from kvstore.tier import TierConfig, TierSpec, WriteMode

HOST = "host"
"""The tier in our own memory."""


class OpenTiers(NamedTuple):
    """Tiers for a store, and why those not there could not be opened."""

    specs: list[TierSpec]
    degraded: dict[str, str]


def open_tiers(
    setups: Sequence[TierSetup],
    arena: Arena,
    item_bytes: int,
    registry: Registry,
    clock: Clock,
    admission: Admission,
) -> OpenTiers:
    """Open what can be opened; a codec takes numbers of ``item_bytes``. Raises ``PluginError``."""
    opened = OpenTiers([], {})
    for setup in setups:
        try:
            opened.specs.append(_tier_spec(setup, arena, item_bytes, registry, clock, admission))
        except BackendError as error:
            opened.degraded[setup.name] = f"runs without this tier: {error.reason}"
    return opened


def _tier_spec(
    setup: TierSetup, arena: Arena, item_bytes: int, registry: Registry, clock: Clock, admission: Admission
) -> TierSpec:
    tier_config = TierConfig(setup.name, setup.budget_bytes, WriteMode(setup.write_mode))
    make_policy = registry.get(Kind.EVICTION, setup.eviction)
    codec = registry.get(Kind.CODEC, setup.codec)(item_bytes=item_bytes) if setup.codec else None
    options: dict[str, object] = {"path": setup.path}
    if setup.name == HOST:
        options = {"arena": arena}
    elif setup.address:
        options = {"address": setup.address, "clock": clock}
    backend = registry.get(Kind.BACKEND, setup.name)(**options)
    return TierSpec(tier_config, backend, make_policy(), admission, codec, make_policy)
