"""Every attention backend there is for the device: whether it agrees with plain arithmetic, and its time."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import torch

from backends.kv_shape import KVShape
from benchmarks.on_gpu.findings import Budget, Findings
from benchmarks.on_gpu.served import Bench
from benchmarks.on_gpu.sizes import BLOCK_TOKENS
from benchmarks.on_gpu.timing import seconds
from engine_adapter.engine.attention import Attend, AttentionBackend, AttentionKind, Span
from engine_adapter.engine.attention_choice import candidates, first_that_agrees
from engine_adapter.engine.flex import FlexAttention
from kvstore.errors import ConfigError, one_line

_SOFTCAP = 50.0
_DTYPE = torch.bfloat16

_Sizes = list[tuple[int, int]]
"""Of each sequence: the tokens that are in the pool already, and those that are computed."""

_Times = tuple[float, float] | str
"""Seconds of one layer, and of the plan that all layers of a step share; or why there are none."""


def attention_backends(bench: Bench, budget: Budget) -> Findings:
    """Try all backends with all kinds of attention of the served model's shape, and time those that agree."""
    findings, shape = Findings(), bench.size.served
    kv_shape = KVShape(1, shape.kv_heads, shape.head_dim, BLOCK_TOKENS, _DTYPE)
    kinds = _kinds(bench)
    reasons: dict[str, dict[str, str]] = {name: {} for name in kinds}
    times: dict[str, dict[str, Any]] = {name: {} for name in kinds}
    # What has to be compiled comes last, lest it take the time of the others.
    backends = sorted(candidates(bench.device), key=lambda backend: backend.name == FlexAttention.name)
    for backend, (kind_name, kind) in product(backends, kinds.items()):
        what = f"attention {kind_name} by {backend.name}"
        if budget.is_spent:
            findings.tell(what, "not tried: no time was left")
        elif reason := _reason_against(backend, shape.heads, kv_shape, bench.device, kind):
            reasons[kind_name][backend.name] = reason
            findings.tell(what, reason)
        else:
            found = _times(bench, budget, backend, kind)
            times[kind_name][backend.name] = found
            for work, took in found.items():
                findings.tell(f"{what}, {work}", _told(took))
    for kind_name in kinds:
        is_refuted = len(reasons[kind_name]) == len(backends)
        findings.require(
            f"attention {kind_name} works", not is_refuted, ", ".join(times[kind_name]) or "by none"
        )
    findings.figures = {"layer_and_plan_s": times, "does_not_work": reasons}
    return findings


def _kinds(bench: Bench) -> dict[str, AttentionKind]:
    window = bench.size.attention_context // 2
    return {
        "plain": AttentionKind(),
        "window": AttentionKind(window=window),
        "softcap": AttentionKind(softcap=_SOFTCAP),
        "window and softcap": AttentionKind(window, _SOFTCAP),
    }


def _reason_against(
    backend: AttentionBackend, num_heads: int, shape: KVShape, device: torch.device, kind: AttentionKind
) -> str:
    """Return why ``backend`` cannot be used for ``kind``, empty if it can."""
    try:
        first_that_agrees([backend], num_heads, shape, _DTYPE, device, [kind])
    except ConfigError as error:
        return error.reason.partition(": ")[2]
    return ""


def _works(bench: Bench) -> dict[str, _Sizes]:
    size = bench.size
    works: dict[str, _Sizes] = {
        f"decode {num}": [(size.attention_context, 1)] * num for num in size.decode_sequences
    }
    return {**works, f"prefill {size.prefill_tokens}": [(0, size.prefill_tokens)]}


def _times(bench: Bench, budget: Budget, backend: AttentionBackend, kind: AttentionKind) -> dict[str, _Times]:
    """Time every work for which there is time."""
    found: dict[str, _Times] = {}
    for work, sizes in _works(bench).items():
        if budget.is_spent:
            continue
        try:
            found[work] = _layer_s(bench, backend, kind, sizes)
        except Exception as error:  # noqa: BLE001 - a kernel may refuse a size as it refuses anything else
            found[work] = f"fails: {one_line(error)}"
    return found


def _told(took: _Times) -> str:
    if isinstance(took, str):
        return took
    layer_s, plan_s = took
    return f"{layer_s * 1e3:.3f} ms a layer, {plan_s * 1e3:.3f} ms to plan a step"


@torch.inference_mode()
def _layer_s(
    bench: Bench, backend: AttentionBackend, kind: AttentionKind, sizes: _Sizes
) -> tuple[float, float]:
    """Time one layer over random keys and values, and its plan."""
    shape, device = bench.size.served, bench.device
    spans, num_pages = _spans(sizes)
    rows = sum(num for _, num in sizes)
    slots = num_pages * BLOCK_TOKENS, shape.kv_heads, shape.head_dim
    keys, values = (torch.randn(slots, dtype=_DTYPE, device=device) for _ in range(2))
    query = torch.randn(1, shape.heads, rows, shape.head_dim, dtype=_DTYPE, device=device)
    scaling = shape.head_dim**-0.5

    def attend_by(attend: Attend) -> None:
        attend(query, keys, values, scaling, kind.window, kind.softcap)

    def step() -> None:  # some plan when the first layer asks
        attend_by(backend.plan(spans, BLOCK_TOKENS, _DTYPE, device))

    repeats = bench.size.attention_repeats
    seconds(bench, step, repeats=2)
    step_s = seconds(bench, step, repeats)
    attend = backend.plan(spans, BLOCK_TOKENS, _DTYPE, device)
    attend_by(attend)
    layer_s = seconds(bench, lambda: attend_by(attend), repeats)
    return layer_s, max(0.0, step_s - layer_s)


def _spans(sizes: _Sizes) -> tuple[list[Span], int]:
    """Return spans over scattered pages, and how many pages there are."""
    nums = [-(-(start + num) // BLOCK_TOKENS) for start, num in sizes]
    pages = list(range(sum(nums)))
    random.Random(7).shuffle(pages)  # noqa: S311 - the same in every run
    spans, begin, at = [], 0, 0
    for (start, num), num_pages in zip(sizes, nums, strict=True):
        spans.append(Span(begin, start, start + num, tuple(pages[at : at + num_pages])))
        begin, at = begin + num, at + num_pages
    return spans, len(pages)
