"""What was planned for one prompt, from its first plan on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine_adapter.engine.events import Chosen, Planned
from engine_adapter.engine.request import Mode
from policies.planning import Choice, Plan, is_loadable


@dataclass(slots=True)
class Planning:
    """The first plan and the latest, when they were made, and what there was to load.

    Another one is worth the time to make it from ``paid_s`` on. What is told is about the first; a policy
    hears of those since ``began_s`` alone, when the prompt was begun, for the last time if several times.
    """

    policy: str
    chosen: Chosen
    first: Plan
    latest: Plan
    first_s: float
    latest_s: float
    tokens_by_tier: dict[str, int]
    num_plans: int = 1
    paid_s: float = 0.0
    began_s: float | None = field(init=False)
    """``None``: to be begun again."""

    def __post_init__(self) -> None:
        self.began_s = self.first_s

    @property
    def previous(self) -> Plan | None:
        """The latest plan since the prompt was begun."""
        return None if self.began_s is None else self.latest

    def elapsed_s(self, now_s: float) -> float:
        """Return how long ago the prompt was begun."""
        return 0.0 if self.began_s is None else now_s - self.began_s

    @property
    def loaded_by_s(self) -> float:
        """When the loads of the latest plan should have ended."""
        return self.latest_s + self.latest.prediction.load_s

    def again(self, plan: Plan, now_s: float) -> None:
        """Note that the prompt was planned for once more."""
        self.latest, self.latest_s = plan, now_s
        self.began_s = now_s if self.began_s is None else self.began_s
        self.num_plans += 1

    def interrupt(self) -> None:
        """Note that what there was of the prompt is gone: the next plan begins anew, with other blocks."""
        self.began_s = None

    def told(self, mode: Mode, first_token_s: float | None, *, is_served: bool, num_failed: int) -> Planned:
        """Return what the caller is told of it."""
        prediction = self.first.prediction
        return Planned(
            policy=self.policy,
            mode=mode,
            is_served=is_served,
            chosen=self.chosen,
            reason=self.first.reason + _failures(num_failed)
            if is_served
            else _unserved(mode, self.first.reason),
            tokens_by_tier=self.tokens_by_tier,
            predicted_s=prediction.ttft_s,
            if_computed_s=prediction.if_computed_s,
            if_loaded_s=prediction.if_loaded_s,
            num_plans=self.num_plans,
            num_failed=num_failed,
            actual_s=None if first_token_s is None else first_token_s - self.first_s,
        )


def chosen_by(plan: Plan, tiers: Sequence[str | None]) -> Chosen:
    """Return whether a plan loads all that ``tiers`` have, nothing of it, or some."""
    pairs = zip(plan.choices, tiers, strict=True)
    loadable = {choice for choice, tier in pairs if is_loadable(tier)}
    if Choice.LOAD not in loadable:
        return "compute"
    return "both" if Choice.COMPUTE in loadable else "load"


def _failures(num_failed: int) -> str:
    if not num_failed:
        return ""
    return f"; {num_failed} of its blocks were asked for and did not come, so they were computed"


def _unserved(mode: Mode, reason: str) -> str:
    """Return why nothing was loaded of what there was, and what would have been done."""
    if mode is Mode.VERIFY:
        return (
            f"the mode is verify: this hit was computed, to be compared with what is stored; else: {reason}"
        )
    return f"the mode is {mode.value}: nothing is loaded; mode serve: {reason}"
