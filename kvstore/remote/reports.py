"""What a server tells of itself and of pins, and how its clients read it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvstore.errors import PinBudgetError
from kvstore.remote.tenancy import Tenant
from kvstore.statistics import Health, State, StoreStatistics, TierHealth, TierStatistics
from kvstore.upkeep import Pinned, Pinning


def health_report(health: Health) -> dict[str, Any]:
    """Return a store's health as plain data."""
    tiers = {name: {"state": tier.state.value, "reason": tier.reason} for name, tier in health.tiers.items()}
    return {"state": health.state.value, "reason": health.reason, "tiers": tiers}


def health_told(report: dict[str, Any]) -> Health:
    """Return the health that a server told."""
    tiers = {name: TierHealth(State(tier["state"]), tier["reason"]) for name, tier in report["tiers"].items()}
    return Health(State(report["state"]), tiers, report["reason"])


def statistics_report(statistics: StoreStatistics, tenant: Tenant) -> dict[str, Any]:
    """Return a store's statistics as plain data; a tenant is told no counts: they are of all together."""
    if tenant.name:
        tiers = tuple(
            TierStatistics(tier.name, tier.budget_bytes, 0, 0, is_draining=tier.is_draining)
            for tier in statistics.tiers
        )
        statistics = StoreStatistics(tiers, 0, 0, 0)
    return asdict(statistics)


def statistics_told(report: dict[str, Any]) -> StoreStatistics:
    """Return the statistics that a server told."""
    tiers = tuple(TierStatistics(**tier) for tier in report["tiers"])
    return StoreStatistics(**{**report, "tiers": tiers})


def pinned_told(report: dict[str, Any]) -> Pinned:
    """Return what a server has pinned. Raises ``PinBudgetError``."""
    if report.get("beyond"):
        raise PinBudgetError(*report["beyond"])
    named = {name: report[name] for name in ("tenant", "until_ms", "num_blocks", "charged_bytes")}
    return Pinned(**named, absent=tuple(map(bytes.fromhex, report["absent"])))


def pins_told(reports: list[dict[str, Any]]) -> list[Pinning]:
    """Return what a server told of its pins."""
    return [Pinning(**report) for report in reports]
