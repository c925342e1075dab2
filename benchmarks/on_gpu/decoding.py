"""Decoding beside what the device's memory allows: a step reads all weights, and the KV of every sequence."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue
from statistics import median

import torch

from benchmarks.on_gpu.findings import Budget, Findings
from benchmarks.on_gpu.random_llama import read_bytes
from benchmarks.on_gpu.served import Bench, Served, greedy
from benchmarks.on_gpu.timing import medians
from engine_adapter.engine.events import Event, Finished
from engine_adapter.engine.request import CacheUse

_LEAST_SHARE = 0.7
_SEED = 31


def decode_steps(bench: Bench, budget: Budget) -> Findings:
    """Time the steps in which all sequences decode, by the engine."""
    findings, size = Findings(), bench.size
    bytes_per_s = memory_bytes_per_s(bench)
    findings.tell("device memory", f"{bytes_per_s / 1e9:.0f} GB/s, read and written by plain copies")
    steps_s: dict[str, float] = {}
    shares: dict[str, float] = {}
    weights_bytes = read_bytes(bench.served_model.model)
    with bench.serve(bench.served_model, tiers=()) as served:
        for num in size.decode_sequences:
            name = f"decode {num}"
            if budget.is_spent:
                findings.tell(name, "not measured: no time was left")
                continue
            prompts = bench.prompts(num, size.decode_context, _SEED)
            steps_s[name], context = _step(served, prompts, size.decode_tokens)
            nbytes = weights_bytes + context * served.serving.model_facts.kv_shape.token_bytes
            shares[name] = nbytes / bytes_per_s / steps_s[name]
            findings.tell(
                name, f"{steps_s[name] * 1e3:.2f} ms a step of {nbytes / 1e9:.2f} GB, "
                f"{num / steps_s[name]:.0f} tokens/s"
            )  # fmt: skip
            findings.mark(f"{name} over the memory's limit", shares[name], _LEAST_SHARE)
    findings.figures = {"memory_bytes_per_s": bytes_per_s, "step_s": steps_s, "share_of_limit": shares}
    return findings


def memory_bytes_per_s(bench: Bench) -> float:
    """Return how many bytes a second the device reads and writes in a large copy."""
    source = torch.zeros(bench.size.bandwidth_bytes, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    took_s = medians(bench, {"copy": lambda: target.copy_(source)}, repeats=5)["copy"]
    return 2 * source.nbytes / took_s


def _step(served: Served, prompts: Sequence[list[int]], num_tokens: int) -> tuple[float, float]:
    """Return the median time between tokens while all sequences decode, and how many tokens they have then.

    Those that begin early go on until the last one has begun, and ``num_tokens`` further.
    """
    events: SimpleQueue[Event] = SimpleQueue()
    engine = served.serving.engine
    most = served.serving.model_facts.context_tokens - len(prompts[0])
    handles = [engine.submit(greedy(prompt, most, CacheUse.OFF), events.put) for prompt in prompts]
    num_begun, num_before, between_s = 0, 0, list[float]()
    while len(between_s) < num_tokens * len(prompts):
        event = events.get()
        assert not isinstance(event, Finished), event
        num_begun += event.since_previous_s is None
        if num_begun < len(prompts) or event.since_previous_s is None:
            num_before += 1
        else:
            between_s.append(event.since_previous_s)
    for handle in handles:
        engine.cancel(handle)
    num_open = len(prompts)
    while num_open:
        num_open -= isinstance(events.get(), Finished)
    return median(between_s), sum(map(len, prompts)) + num_before + len(between_s) / 2
