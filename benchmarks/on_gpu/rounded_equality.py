"""Whether answers in bf16 are those of the clean run by the rule for 16 bits, and whether it sees faults."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.on_gpu.equality import ways
from benchmarks.on_gpu.findings import Budget, Findings
from benchmarks.on_gpu.rounding import CleanRun
from benchmarks.on_gpu.served import Bench, Served
from benchmarks.on_gpu.sizes import BLOCK_TOKENS
from engine_adapter.engine.request import CacheUse

_SEED, _CONTROL_SEED, _OTHER_SEED = 21, 22, 23
_WRONG_BLOCK = 2


def rounded_answers(bench: Bench, budget: Budget) -> Findings:
    """Compare tokens in bf16 as ``rounding`` says."""
    findings, size = Findings(), bench.size
    with bench.serve(bench.served_model) as served:
        _controls(bench, served, findings)
        wrong: dict[str, int] = {}
        noises: list[float] = []
        for prompt in bench.prompts(size.num_prompts, size.equal_tokens, _SEED):
            if budget.is_spent:
                break
            clean = CleanRun.of(served, prompt, size.answer_tokens)
            noises.append(clean.noise(served))
            served.store(prompt)
            for way in ways((0.5,)):
                served.keep_from(way.tier)
                answers = clean.replayed(served, way.policy)
                num_wrong = clean.num_wrong(answers, noises[-1])
                num_wrong += not way.is_taken(dict(answers[0].usage.tokens_by_source), _num_blocks(prompt))
                wrong[way.name] = wrong.get(way.name, 0) + num_wrong
    findings.require("bf16 prompts compared", bool(noises), f"{len(noises)} of {size.num_prompts}")
    for name, num_wrong in wrong.items():
        findings.require(f"bf16 tokens equal {name}", not num_wrong, f"{num_wrong} wrong")
    findings.tell("bf16 rounding without a cache", f"{max(noises, default=0.0):.3f} in log probability")
    findings.figures |= {"num_wrong": wrong, "noise": noises}
    return findings


def _controls(bench: Bench, served: Served, findings: Findings) -> None:
    """Find out whether the rule sees one wrong block: the next one in its place, and another prompt's."""
    size = bench.size
    num_seen = {"shifted": 0, "another prompt's": 0}
    prompts = bench.prompts(size.num_prompts, size.control_tokens, _CONTROL_SEED)
    (other,) = bench.prompts(1, size.control_tokens, _OTHER_SEED)
    served.store(other)
    num_wrong_unharmed = 0
    for prompt in prompts:
        clean = CleanRun.of(served, prompt, size.answer_tokens)
        noise = clean.noise(served)
        served.store(prompt)
        served.keep_from("host")
        num_wrong_unharmed += clean.num_wrong(clean.replayed(served, cache=CacheUse.READ), noise)
        sources = {"shifted": (prompt, _WRONG_BLOCK + 1), "another prompt's": (other, _WRONG_BLOCK)}
        wrong = {what: _bytes_of(served, *source) for what, source in sources.items()}
        for what, data in wrong.items():
            _plant(served, prompt, data)
            answers = clean.replayed(served, cache=CacheUse.READ)
            num_seen[what] += clean.num_wrong(answers, noise)
    findings.require("bf16 short prompts equal", not num_wrong_unharmed, f"{num_wrong_unharmed} wrong")
    for what, num in num_seen.items():
        findings.require(f"bf16 check sees a block that is {what}", num > 0, f"in {num} tokens")
    findings.figures["wrong_blocks_seen"] = num_seen


def _bytes_of(served: Served, prompt: Sequence[int], index: int) -> bytearray:
    data = bytearray(served.serving.model_facts.kv_shape.block_bytes)
    is_there = served.serving.store.get_into(served.keys(prompt)[index], memoryview(data))
    assert is_there, "a block that was stored is gone"
    return data


def _plant(served: Served, prompt: Sequence[int], data: bytearray) -> None:
    """Store ``data`` as a block of ``prompt``, in place of the right one."""
    store, keys = served.serving.store, served.keys(prompt)
    served.keep_from("host")
    store.evict([keys[_WRONG_BLOCK]])
    is_stored = store.put(
        served.serving.model_facts.namespace, keys[_WRONG_BLOCK], keys[_WRONG_BLOCK - 1], memoryview(data)
    )
    assert is_stored, "the wrong block could not be planted"


def _num_blocks(prompt: Sequence[int]) -> int:
    return len(prompt) // BLOCK_TOKENS
