"""Time to the first token of long prompts: computed, from every tier, and both at once."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.on_gpu.findings import Budget, Findings
from benchmarks.on_gpu.served import Bench, Served, greedy
from engine_adapter.engine.events import COMPUTED, Usage
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
        rounds: list[dict[str, Usage]] = []
        with bench.serve(bench.served_model) as served:
            took_s = 0.0
            for prompt in bench.prompts(size.ttft_rounds + 1, num_tokens, _SEED):
                if budget.left_s < took_s:
                    break
                left_s = budget.left_s
                rounds.append(_usages(served, prompt))
                took_s = left_s - budget.left_s
        _report(num_tokens, rounds[1:], findings)
    return findings


def _usages(served: Served, prompt: list[int]) -> dict[str, Usage]:
    """Return what a prompt cost in every way."""
    usages = {COMPUTED: served.answer(greedy(prompt, 1, CacheUse.OFF)).usage}
    served.store(prompt)
    for way, (tier, policy) in _WAYS.items():
        served.keep_from(tier)
        usages[way] = served.answer(greedy(prompt, 1), policy).usage
    return usages


def _report(num_tokens: int, rounds: Sequence[dict[str, Usage]], findings: Findings) -> None:
    what = f"TTFT of {num_tokens} tokens"
    if not rounds:
        findings.require(what, holds=False, value="not measured: no time was left")
        return
    ttft_s = {way: median(usages[way].ttft_s or 0.0 for usages in rounds) for way in rounds[0]}
    sources = {way: dict(usage.tokens_by_source) for way, usage in rounds[-1].items()}
    findings.tell(what, ", ".join(f"{way} {each_s * 1e3:.0f}" for way, each_s in ttft_s.items()) + " ms")
    for tier in ("device", "host", "disk"):
        if not all(usages[tier].tokens_by_source.get(tier) for usages in rounds):
            findings.require(f"{what} from {tier}", holds=False, value=f"they came from {sources[tier]}")
    findings.figures[str(num_tokens)] = {"ttft_s": ttft_s, "tokens_by_source": sources}
