"""What was decided about prompts, as JSON: in answers, in the list of recent plans, in explanations."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from engine_adapter.engine.accounts import Account
from engine_adapter.engine.events import Planned
from engine_adapter.engine.explaining import Explanation
from engine_adapter.engine.misses import Miss
from engine_adapter.shadowing import ShadowStatistics
from engine_adapter.trace_file import RecordingStatus
from policies.cost_model import LoadCost


def plan_body(planned: Planned) -> dict[str, Any]:
    """Return what was planned for a request, and what came of it."""
    return {
        "policy": planned.policy,
        "mode": planned.mode.value,
        "chosen": planned.chosen,
        "reason": planned.reason,
        "tokens_by_tier": dict(planned.tokens_by_tier),
        "predicted_ttft_s": planned.predicted_s,
        "if_computed_s": planned.if_computed_s,
        "if_loaded_s": planned.if_loaded_s,
        "actual_s": planned.actual_s,
        "num_plans": planned.num_plans,
        "num_failed": planned.num_failed,
    }


def account_body(account: Account) -> dict[str, Any]:
    """Return a request that has ended."""
    return {
        "number": account.number,
        "ended_at": account.at_ms / 1000,
        "ended": account.ended,
        "namespace": account.namespace,
        "mode": account.mode.value,
        "prompt_tokens": account.prompt_tokens,
        "tokens_by_source": dict(account.tokens_by_source),
        "ttft_s": account.ttft_s,
        "reason": account.reason,
        "plan": plan_body(account.planned) if account.planned else None,
        "miss": miss_body(account.miss) if account.miss else None,
    }


def explanation_body(explanation: Explanation) -> dict[str, Any]:
    """Return what would be done with a prompt; times in seconds from the moment of planning."""
    prediction = explanation.plan.prediction
    return {
        "namespace": explanation.namespace,
        "mode": explanation.mode.value,
        "prompt_tokens": explanation.prompt_tokens,
        "block_tokens": explanation.block_tokens,
        "reason": explanation.reason,
        "plan": {
            "policy": explanation.policy,
            "chosen": explanation.chosen,
            "reason": explanation.plan.reason,
            "tokens_by_tier": explanation.tokens_by_tier,
            "predicted_ttft_s": prediction.ttft_s,
            "if_computed_s": prediction.if_computed_s,
            "if_loaded_s": prediction.if_loaded_s,
        },
        "blocks": _runs(explanation),
        "costs": {tier: _cost_body(cost) for tier, cost in explanation.loads.items()},
        "miss": miss_body(explanation.miss) if explanation.miss else None,
    }


def miss_body(miss: Miss) -> dict[str, Any]:
    """Return why the first missing block is missing."""
    return {
        "block": miss.index,
        "first_token": miss.first_token,
        "cause": "other namespace" if miss.differences else miss.cause.value,
        "tier": miss.tier or None,
        "left_at": miss.at_ms / 1000 if miss.at_ms else None,
        "differences": [
            {"field": one.field, "here": one.here, "there": one.there} for one in miss.differences
        ],
        "namespaces_not_searched": miss.num_unsearched,
        "sentence": miss.sentence(),
    }


def shadows_body(shadows: ShadowStatistics) -> dict[str, Any]:
    """Return what shadow policies would have hit; shares from 0 to 1."""
    return {
        "tiers": {
            name: {
                "live": report.live,
                "hit_ratios": dict(report.hit_ratios),
                "regret": report.regret,
                "sample_rate": report.rate,
            }
            for name, report in shadows.tiers.items()
        },
        "core_share": shadows.core_share,
        "num_dropped": shadows.num_dropped,
    }


def recording_body(recording: RecordingStatus, num_dropped: int) -> dict[str, Any]:
    """Return how far a recording has come."""
    return {
        "file": str(recording.file),
        "num_recorded": recording.num_recorded,
        "num_dropped": num_dropped + recording.num_left_out,
        "trouble": recording.trouble or None,
    }


def _runs(explanation: Explanation) -> list[dict[str, Any]]:
    """Return blocks next to each other as one where they are in the same place and have the same fate."""
    places = [(tier, explanation.is_loaded(index)) for index, tier in enumerate(explanation.tiers)]
    runs: list[dict[str, Any]] = []
    first = 0
    for (tier, is_loaded), group in groupby(places):
        num = len(list(group))
        fate = "load" if is_loaded else "share" if explanation.is_shared(tier) else "compute"
        runs.append({"first_block": first, "num_blocks": num, "tier": tier, "choice": fate})
        first += num
    return runs


def _cost_body(cost: LoadCost) -> Mapping[str, float]:
    return {"latency_s": cost.latency_s, "bytes_per_s": cost.bytes_per_s, "queue_s": cost.queue_s}
