"""Time to the first token of long prompts: computed, from every tier, and both at once."""

from __future__ import annotations

from statistics import median

from benchmarks.on_gpu.findings import Budget, Findings
from benchmarks.on_gpu.served import Bench, Served, greedy
from engine_adapter.engine.request import CacheUse
from policies.planning import ReloadPolicy
from policies.reload import AlwaysLoad, Measured

_SEED = 41
_WAYS: dict[str, tuple[str, ReloadPolicy]] = {
    "device": ("device", AlwaysLoad()),
    "host": ("host", AlwaysLoad()),
    "disk": ("disk", AlwaysLoad()),
    "split": ("disk", Measured()),
}


def first_tokens(bench: Bench, budget: Budget) -> Findings:
    """Time prompts of every length in every way; one round before the first is not counted."""
    findings, size = Findings(), bench.size
    for num_tokens in size.ttft_tokens:
        with bench.serve(bench.served_model) as served:
            ttft_s: dict[str, list[float]] = {}
            took_s = 0.0
            for number, prompt in enumerate(bench.prompts(size.ttft_rounds + 1, num_tokens, _SEED)):
                if budget.left_s < took_s:
                    break
                left_s = budget.left_s
                _round(served, prompt, ttft_s if number else {}, findings)
                took_s = left_s - budget.left_s
        medians_s = {way: median(times) for way, times in ttft_s.items()}
        text = ", ".join(f"{way} {each_s * 1e3:.0f}" for way, each_s in medians_s.items())
        findings.require(f"TTFT measured at {num_tokens}", bool(medians_s), f"{text} ms")
        findings.figures[str(num_tokens)] = {"ttft_s": medians_s}
    return findings


def _round(served: Served, prompt: list[int], ttft_s: dict[str, list[float]], findings: Findings) -> None:
    answer = served.answer(greedy(prompt, 1, CacheUse.OFF))
    ttft_s.setdefault("computed", []).append(answer.usage.ttft_s or 0.0)
    served.store(prompt)
    for way, (tier, policy) in _WAYS.items():
        served.keep_from(tier)
        answer = served.answer(greedy(prompt, 1), policy)
        sources = dict(answer.usage.tokens_by_source)
        if way != "split" and not sources.get(tier):
            findings.require(
                f"{len(prompt)} tokens from {tier}", holds=False, value=f"they came from {sources}"
            )
        ttft_s.setdefault(way, []).append(answer.usage.ttft_s or 0.0)
