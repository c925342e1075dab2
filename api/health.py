"""How the server is, for load balancers and people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvstore.statistics import Health, State

if TYPE_CHECKING:  # a store alone needs no torch
    from engine_adapter.assemble import Serving

_STATUS = {State.OK: 200, State.DEGRADED: 200, State.UNHEALTHY: 503}


@dataclass(frozen=True)
class HealthAnswer:
    """An HTTP status, and the body that explains it."""

    status: int
    body: dict[str, Any]


class Readiness:
    """Whether requests should be sent here: not before all is there, and not while it is stopping."""

    def __init__(self) -> None:
        self.is_started = False
        self.is_draining = False

    def answer(self, health: HealthAnswer) -> HealthAnswer:
        """Return 200 while requests should come, and 503 otherwise."""
        state = "draining" if self.is_draining else "ready" if self.is_started else "starting"
        if state == "ready" and health.status != _STATUS[State.OK]:
            state = "unhealthy"
        return HealthAnswer(200 if state == "ready" else 503, {"status": state})


def health_answer(serving: Serving) -> HealthAnswer:
    """Return 200 while requests are answered, also without a tier, and 503 otherwise."""
    engine = serving.engine.health()
    engine_reason = "" if engine.ok else engine.reason or "it has ended"
    broken = {"engine": engine_reason} if engine_reason else {}
    store = serving.store.health()
    return store_health_answer(store, {**serving.degraded, **_found_wrong(serving, store)}, broken)


def _found_wrong(serving: Serving, store: Health) -> dict[str, str]:
    """Return what the audit in idle time found, while blocks are in quarantine."""
    wrong = serving.engine.rechecker.last_wrong
    if not wrong or not store.reason:
        return {}
    return {"audit": f"{wrong[0].label}: a block in tier {wrong[0].tier} was not what its tokens give"}


def store_health_answer(
    store: Health, degraded: Mapping[str, str], broken: Mapping[str, str]
) -> HealthAnswer:
    """Do so for a store; ``broken`` says of what must be there, as an engine, why it is not."""
    reasons = {name: tier.reason for name, tier in store.tiers.items() if tier.state is not State.OK}
    reasons |= degraded
    if store.reason:
        reasons["store"] = store.reason
    reasons |= broken
    if broken or store.state is State.UNHEALTHY:
        state = State.UNHEALTHY
    else:
        state = State.DEGRADED if reasons else State.OK
    return HealthAnswer(_STATUS[state], {"status": state.value, "reasons": reasons})
