"""Whether answers are those of the clean run, from whatever tier and however split: in fp32, by tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from api.bench.reload_line import FixedSplit
from benchmarks.on_gpu.findings import Budget, Findings
from benchmarks.on_gpu.served import Bench, Served, greedy
from benchmarks.on_gpu.sizes import BLOCK_TOKENS
from engine_adapter.engine.events import COMPUTED
from engine_adapter.engine.request import CacheUse
from policies.planning import ReloadPolicy
from policies.reload import AlwaysLoad, Measured

_SEED = 11
_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, slots=True)
class Way:
    """How a prompt that all tiers hold is brought back: the fastest tier left, and the policy.

    At least ``computed_share`` of its blocks are computed.
    """

    name: str
    tier: str
    policy: ReloadPolicy
    computed_share: float = 0.0

    def is_taken(self, tokens_by_source: dict[str, int], num_blocks: int) -> bool:
        """Say whether the prompt came that way; what policies decide by themselves is no matter of this."""
        if isinstance(self.policy, Measured):
            return True
        least_computed = round(self.computed_share * num_blocks) * BLOCK_TOKENS
        is_loaded = tokens_by_source.get(self.tier, 0) > 0
        return is_loaded and tokens_by_source.get(COMPUTED, 0) >= least_computed


def ways(shares: tuple[float, ...] = _SHARES) -> list[Way]:
    """Return every tier alone, splits of each at several points, and what the default policy chooses."""
    alone = [Way(f"from {tier}", tier, AlwaysLoad()) for tier in ("device", "host", "disk")]
    split = [
        Way(f"from {tier}, the first {share:.0%} computed", tier, FixedSplit(share), share)
        for tier in ("host", "disk")
        for share in shares
    ]
    return [*alone, *split, Way("from disk, by measured costs", "disk", Measured())]


def exact_answers(bench: Bench, budget: Budget) -> Findings:
    """Compare tokens in fp32 with those of a server that records no decode steps."""
    findings, size = Findings(), bench.size
    prompts = bench.prompts(size.num_prompts, size.equal_tokens, _SEED)
    requests = [greedy(prompt, size.answer_tokens, CacheUse.OFF) for prompt in prompts]
    with replace(bench, decode_graphs=False).serve(bench.exact_model, tiers=()) as served:
        clean = [served.answer(request).token_ids for request in requests]
    with bench.serve(bench.exact_model) as served:
        alone = [served.answer(request).token_ids for request in requests]
        together = [answer.token_ids for answer in served.answers_together(requests)]
        wrong = {
            "without any cache, alone": [] if alone == clean else ["tokens differ"],
            "without any cache, all at once": [] if together == clean else ["tokens differ"],
        }
        for prompt, ids in zip(prompts, clean, strict=True):
            if not budget.is_spent:
                _compare(served, prompt, ids, wrong)
    num_distinct = len({token for ids in clean for token in ids})
    findings.require("answers are no loops", num_distinct > size.answer_tokens // 2, f"{num_distinct} words")
    for name, faults in wrong.items():
        findings.require(f"fp32 tokens equal {name}", not faults, "; ".join(faults) or "equal")
    findings.figures = {"wrong": wrong, "num_distinct_tokens": num_distinct}
    return findings


def _compare(served: Served, prompt: list[int], clean: tuple[int, ...], wrong: dict[str, list[str]]) -> None:
    """Bring ``prompt`` back in every way, and note where it is another answer or came another way."""
    served.store(prompt)
    for way in ways():
        served.keep_from(way.tier)
        answer = served.answer(greedy(prompt, len(clean)), way.policy)
        faults = wrong.setdefault(way.name, [])
        sources = dict(answer.usage.tokens_by_source)
        if answer.token_ids != clean:
            faults.append("tokens differ")
        if not way.is_taken(sources, len(prompt) // BLOCK_TOKENS):
            faults.append(f"tokens came from {sources}")
