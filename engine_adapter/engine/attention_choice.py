"""Which attention this device runs: the first candidate that agrees with plain arithmetic.

Kernels differ in what they take (dtype, head size, size of a block) and refuse late, or align a
causal mask otherwise than asked. So none is trusted by its name: each is tried at start-up on
small random data of the model's own shape, with each kind of attention that its layers use: in a step of
all sorts, in one that only decodes, and in one that decodes as it would be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from backends.kv_shape import KVShape
from engine_adapter.engine.attention import Attend, AttentionBackend, AttentionKind, PlansDecodes, Span
from engine_adapter.engine.flashinfer import FlashInferAttention
from engine_adapter.engine.flex import FlexAttention
from engine_adapter.engine.kv_forms import Kept, layer_of, read
from engine_adapter.engine.sdpa import CPU_GATHER_TOKENS, SdpaAttention
from engine_adapter.engine.varlen import VarlenAttention
from kvstore.errors import ConfigError, one_line

# Far above the rounding of a sound kernel on values around 1, far below one key too many or too few.
_TOLERANCE = {torch.float32: 4e-3, torch.float16: 2e-2, torch.bfloat16: 4e-2}
# On a GPU a call for each sequence costs more than copying any of them.
_GPU_GATHER_TOKENS = 1 << 30
_SCALING = 0.3
_SEED = 7


@dataclass(frozen=True, slots=True)
class Choice:
    """The attention to use, and why each candidate before it was not."""

    attention: AttentionBackend
    rejected: dict[str, str]


def choose_attention(
    num_heads: int,
    shape: KVShape,
    dtype: torch.dtype,
    device: torch.device,
    kinds: Iterable[AttentionKind],
) -> Choice:
    """Return the attention for a model on ``device`` that computes in ``dtype``, with layers of ``kinds``.

    Runs candidates on random data. Raises ``ConfigError`` when none is right.
    """
    return first_that_agrees(candidates(device), num_heads, shape, dtype, device, kinds)


def first_that_agrees(
    candidates: Sequence[AttentionBackend],
    num_heads: int,
    shape: KVShape,
    dtype: torch.dtype,
    device: torch.device,
    kinds: Iterable[AttentionKind],
) -> Choice:
    """Return the first of ``candidates`` that gives what plain arithmetic gives for all ``kinds``.

    A candidate may raise anything. Raises ``ConfigError`` when none agrees, with each one's reason.
    """
    rejected: dict[str, str] = {}
    sample = _Sample.random(num_heads, shape, dtype, device)
    tried = _tried(kinds, shape.block_tokens)
    for candidate in candidates:
        objections = (_objection(*step, kind) for step in _steps(candidate, sample) for kind in tried)
        reason = next(filter(None, objections), None)
        if reason is None:
            return Choice(candidate, rejected)
        rejected[candidate.name] = reason
    reasons = "; ".join(f"{name} {reason}" for name, reason in rejected.items())
    raise ConfigError("device", f"no attention works on {device} in {dtype}: {reasons}")


def candidates(device: torch.device) -> list[AttentionBackend]:
    """Return all attention there is for ``device``, the fastest first; whether it works is another matter."""
    if device.type == "cpu":
        return [SdpaAttention(CPU_GATHER_TOKENS)]
    installed = [FlashInferAttention()] if find_spec("flashinfer") else []
    return [*installed, VarlenAttention(), FlexAttention(), SdpaAttention(_GPU_GATHER_TOKENS)]


@dataclass(frozen=True, slots=True)
class _Sample:
    """A small batch: a prefill, the middle of another, two decodes; blocks scattered and shared."""

    query: torch.Tensor
    keys: Kept
    values: Kept
    spans: tuple[Span, ...]
    block_tokens: int

    @classmethod
    def random(cls, num_heads: int, shape: KVShape, dtype: torch.dtype, device: torch.device) -> _Sample:
        size = shape.block_tokens
        bounds = [(0, size + 1, (4, 1)), (size, 3 * size - 1, (6, 7, 2)), (size // 2, size // 2 + 1, (5,))]
        bounds.append((2 * size, 2 * size + 1, (6, 3, 0)))
        spans, begin = [], 0
        for start, end, blocks in bounds:
            spans.append(Span(begin, start, end, blocks))
            begin += end - start
        generator = torch.Generator().manual_seed(_SEED)
        query = torch.randn(1, num_heads, begin, shape.head_dim, generator=generator)
        keys, values = torch.randn(2, 8 * size, shape.num_kv_heads, shape.head_dim, generator=generator)
        layer = layer_of(shape, keys.to(device), values.to(device))
        return cls(query.to(device, dtype), layer.keys, layer.values, tuple(spans), size)

    def decodes(self) -> _Sample:
        """Return the part of it that decodes."""
        chosen = [span for span in self.spans if span.is_decode]
        query = torch.cat([self.query[:, :, span.rows] for span in chosen], 2)
        spans = tuple(replace(span, begin=row) for row, span in enumerate(chosen))
        return replace(self, query=query, spans=spans)


def _tried(kinds: Iterable[AttentionKind], block_tokens: int) -> list[AttentionKind]:
    """Return ``kinds`` without repetition, each window also as short as it must be to matter here."""
    longest = block_tokens // 2 + 2
    tried: list[AttentionKind] = []
    for kind in kinds:
        tried.append(kind)
        if kind.window is not None:
            tried.append(replace(kind, window=min(kind.window, longest)))
    return list(dict.fromkeys(tried))


_Step = tuple[_Sample, Callable[[], Attend]]


def _steps(candidate: AttentionBackend, sample: _Sample) -> Iterator[_Step]:
    """Yield what a candidate has to compute, and how it is prepared for it."""
    decodes = sample.decodes()
    for part in (sample, decodes):
        device = part.query.device
        yield part, partial(candidate.plan, part.spans, part.block_tokens, part.query.dtype, device)
    if isinstance(candidate, PlansDecodes):
        yield decodes, partial(_filled, candidate, decodes)


def _filled(candidate: PlansDecodes, sample: _Sample) -> Attend:
    """Return a plan for more keys than there are, which attends to others first, as when it is recorded."""
    most_pages = 1 + max(len(span.blocks) for span in sample.spans)
    size = sample.block_tokens
    plan = candidate.decode_plan(len(sample.spans), most_pages, size, sample.query.device)
    others = [Span(span.begin, size - 1, size, span.blocks[:1]) for span in sample.spans]

    def attend(*args: Any, **named: Any) -> torch.Tensor:
        plan.fill(others)
        plan(*args, **named)
        plan.fill(sample.spans)
        return plan(*args, **named)

    return attend


def _objection(sample: _Sample, prepare: Callable[[], Attend], kind: AttentionKind) -> str | None:
    query, scaling = sample.query, _scaling(sample, kind)
    expected = _reference(sample, kind, scaling)
    try:
        attend = prepare()
        with torch.inference_mode():
            out = attend(query, sample.keys, sample.values, scaling, kind.window, kind.softcap).cpu().float()
    except Exception as error:  # noqa: BLE001 - a kernel that is missing or refuses may raise anything
        return f"fails: {one_line(error)}"
    if out.shape != expected.shape:
        return f"gives the shape {tuple(out.shape)}"
    distance = float((out - expected).abs().max())
    return None if distance < _TOLERANCE[query.dtype] else f"is wrong by {distance:.3g}"


def _scaling(sample: _Sample, kind: AttentionKind) -> float:
    """Return a factor for scores that a cap bends, so that one that is left out shows."""
    return _SCALING if kind.softcap is None else kind.softcap / (8 * sample.query.shape[3] ** 0.5)


def _reference(sample: _Sample, kind: AttentionKind, scaling: float) -> torch.Tensor:
    """Return ``[1, rows, num_heads, head_dim]`` by fp32 arithmetic on the CPU."""
    query = sample.query[0].cpu().float()
    # As a kernel gets them: what they lose on the way into the dtype of the queries is not its fault.
    sides = (read(kept, slice(None), sample.query.dtype) for kept in (sample.keys, sample.values))
    keys, values = (side.cpu().float() for side in sides)
    heads_per_key = query.shape[0] // keys.shape[1]
    parts = []
    for span in sample.spans:
        slots = [block * sample.block_tokens + i for block in span.blocks for i in range(sample.block_tokens)]
        key = keys[slots[: span.end]].repeat_interleave(heads_per_key, 1)
        value = values[slots[: span.end]].repeat_interleave(heads_per_key, 1)
        scores = torch.einsum("hqd,khd->hqk", query[:, span.rows], key) * scaling
        if kind.softcap is not None:
            scores = kind.softcap * torch.tanh(scores / kind.softcap)
        distance = torch.arange(span.start, span.end)[:, None] - torch.arange(span.end)
        is_hidden = (distance < 0) | (distance >= (kind.window or span.end))
        weights = torch.softmax(scores.masked_fill(is_hidden, -torch.inf), dim=-1)
        parts.append(torch.einsum("hqk,khd->qhd", weights, value))
    return torch.cat(parts).unsqueeze(0)
