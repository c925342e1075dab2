"""The same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from api.plan.inputs import Question
from api.plan.outlook import Length, Outcome


def report(question: Question, lengths: Sequence[Length]) -> dict[str, Any]:
    """Return what was assumed and what is to be expected. Times in seconds, rates in bytes a second."""
    return {
        "model": {**asdict(question.shape), "token_bytes": question.shape.token_bytes},
        "computing": {
            "what": question.what_computes,
            "chunk_tokens": question.server.chunk_tokens,
            "step_s": question.server.compute.step_s,
            "token_s": question.server.compute.token_s,
            "attended_s": question.server.compute.attended_s,
        },
        "tiers": {
            tier: {
                "what": question.what_loads[tier],
                "latency_s": load.latency_s,
                "bytes_per_s": load.bytes_per_s,
            }
            for tier, load in question.tiers.items()
        },
        "lengths": [_length(length) for length in lengths],
    }


def _length(length: Length) -> dict[str, Any]:
    return {
        "prompt_tokens": length.prompt_tokens,
        "ttft_computed_s": length.compute_s,
        "break_even_bytes_per_s": length.break_even_bytes_per_s,
        "tiers": {tier: _outcome(outcome) for tier, outcome in length.tiers.items()},
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "ttft_loaded_s": outcome.load_s,
        "ttft_both_s": outcome.both_s,
        "computed_tokens": outcome.computed_tokens,
        "loaded_tokens": outcome.loaded_tokens,
        "break_even_bytes_per_s": outcome.break_even_bytes_per_s,
        "reason": outcome.reason,
    }
