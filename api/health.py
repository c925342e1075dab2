"""How the server is, for load balancers and people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine_adapter.assemble import Serving
from kvstore.statistics import State

_STATUS = {State.OK: 200, State.DEGRADED: 200, State.UNHEALTHY: 503}


@dataclass(frozen=True)
class HealthAnswer:
    """An HTTP status, and the body that explains it."""

    status: int
    body: dict[str, Any]


def health_answer(serving: Serving) -> HealthAnswer:
    """Return 200 while requests are answered, also without a tier, and 503 otherwise."""
    engine, store = serving.engine.health(), serving.store.health()
    reasons = {name: tier.reason for name, tier in store.tiers.items() if tier.state is not State.OK}
    reasons |= serving.degraded
    if store.reason:
        reasons["store"] = store.reason
    if not engine.ok:
        reasons["engine"] = engine.reason
    if not engine.ok or store.state is State.UNHEALTHY:
        state = State.UNHEALTHY
    else:
        state = State.DEGRADED if reasons else State.OK
    return HealthAnswer(_STATUS[state], {"status": state.value, "reasons": reasons})
