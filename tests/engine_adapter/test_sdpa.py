"""Attention over the pool against attending to each query's keys alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_adapter.engine.attention import AttentionKind, Span
from engine_adapter.engine.sdpa import SdpaAttention
from engine_adapter.engine.softcap import capped_attention

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 8
SCALING = 0.4
FP32 = torch.float32, torch.device("cpu")

Batch = tuple[list[Span], int]


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Draw sequences whose blocks lie anywhere, and the tokens of a block."""
    block_tokens = draw(st.sampled_from([1, 3, 8]))
    bounds = draw(
        st.lists(st.tuples(st.integers(0, 40), st.sampled_from([1, 1, 1, 2, 9])), min_size=1, max_size=4)
    )
    needed = [-(-(start + num) // block_tokens) for start, num in bounds]
    free = draw(st.permutations(range(sum(needed) + 2)))
    spans, begin = [], 0
    for (start, num), num_blocks in zip(bounds, needed, strict=True):
        blocks, free = tuple(free[:num_blocks]), free[num_blocks:]
        spans.append(Span(begin, start, start + num, blocks))
        begin += num
    return spans, block_tokens


def slots_of(span: Span, block_tokens: int, first: int = 0) -> list[int]:
    return [
        span.blocks[at // block_tokens] * block_tokens + at % block_tokens for at in range(first, span.end)
    ]


def attended(
    query: torch.Tensor, layer: torch.Tensor, slots: Sequence[int], position: int, kind: AttentionKind
) -> torch.Tensor:
    """Return ``[num_heads, head_dim]`` for one query, from the slots that it sees."""
    first = 0 if kind.window is None else max(0, position + 1 - kind.window)
    keys, values = layer[:, slots[first : position + 1]].repeat_interleave(NUM_HEADS // NUM_KV_HEADS, 2)
    scores = torch.einsum("hd,khd->hk", query, keys) * SCALING
    if kind.softcap is not None:
        scores = kind.softcap * torch.tanh(scores / kind.softcap)
    return torch.einsum("hk,khd->hd", scores.softmax(-1), values)


kinds = st.builds(
    AttentionKind, st.none() | st.integers(1, 50), st.none() | st.sampled_from([0.5, 2.0, 50.0])
)


@settings(max_examples=150, deadline=None)
@given(batches(), st.lists(kinds, min_size=1, max_size=3), st.sampled_from([0, 7, 512]), st.integers(0, 99))
def test_every_layer_of_a_step_agrees_and_reads_only_keys_that_are_seen(
    batch: Batch, layer_kinds: list[AttentionKind], gather_tokens: int, seed: int
) -> None:
    spans, block_tokens = batch
    attend = SdpaAttention(gather_tokens).plan(spans, block_tokens, *FP32)
    torch.manual_seed(seed)
    num_rows = sum(span.end - span.start for span in spans)
    num_slots = (sum(len(span.blocks) for span in spans) + 2) * block_tokens
    for kind in layer_kinds:
        query = torch.randn(1, NUM_HEADS, num_rows, HEAD_DIM)
        layer = torch.full((2, num_slots, NUM_KV_HEADS, HEAD_DIM), torch.nan)
        expected = torch.empty(1, num_rows, NUM_HEADS, HEAD_DIM)
        for span in spans:
            first = 0 if kind.window is None else max(0, span.start + 1 - kind.window)
            slots = slots_of(span, block_tokens)
            seen = torch.randn(2, span.end - first, NUM_KV_HEADS, HEAD_DIM)
            layer[:, slots[first:]] = seen
            for row, position in enumerate(range(span.start, span.end), span.begin):
                expected[0, row] = attended(query[0, :, row], layer, slots, position, kind)
        out = attend(query, layer[0], layer[1], SCALING, kind.window, kind.softcap)
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_rows", [1, 64, 65, 200])
def test_many_capped_queries_are_computed_a_part_at_a_time(num_rows: int) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(1, 4, num_rows, 8), torch.randn(1, 2, num_rows, 8)
    mask = torch.full((num_rows, num_rows), -torch.inf).triu(1)[None, None]
    scores = query @ key.repeat_interleave(2, 1).transpose(2, 3)
    expected = (2.0 * torch.tanh(scores / 2.0) + mask).softmax(-1) @ key.repeat_interleave(2, 1)
    out = capped_attention(query, key, key, mask, 1.0, 2.0)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
