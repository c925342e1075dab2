"""torch's paged variable-length attention: one kernel for the whole batch, on a GPU that offers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

import torch

from backends.kv_shape import Layout
from engine_adapter.engine.attention import Attend, Span
from engine_adapter.engine.kv_forms import Kept, ScaledPlane


class VarlenAttention:
    """FlashAttention over a block table; which sizes of block it takes depends on its version.

    Calling it raises where this torch, this device or this dtype does not offer it, or for scores
    that are capped: torch's FlashAttention has no cap.
    """

    name = "varlen"
    layout: Layout = "block-first"

    def plan(
        self,
        spans: Sequence[Span],
        block_tokens: int,
        dtype: torch.dtype,  # noqa: ARG002 - FlashAttention masks by itself
        device: torch.device,
    ) -> Attend:
        num_queries = [span.end - span.start for span in spans]
        widest = max(len(span.blocks) for span in spans)
        table = [[*span.blocks, *[0] * (widest - len(span.blocks))] for span in spans]
        return _Step(
            block_tokens=block_tokens,
            query_starts=_int32([0, *accumulate(num_queries)], device),
            key_ends=_int32([span.end for span in spans], device),
            block_table=torch.tensor(table, dtype=torch.int32, device=device),
            max_queries=max(num_queries),
            max_keys=max(span.end for span in spans),
        )


@dataclass(frozen=True, slots=True)
class _Step:
    block_tokens: int
    query_starts: torch.Tensor
    key_ends: torch.Tensor
    block_table: torch.Tensor
    max_queries: int
    max_keys: int

    def __call__(
        self,
        query: torch.Tensor,
        keys: Kept,
        values: Kept,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        if isinstance(keys, ScaledPlane) or isinstance(values, ScaledPlane):
            raise TypeError("it reads plain keys and values alone")
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - absent from an older torch

        if softcap is not None:
            raise NotImplementedError("it cannot cap scores")
        pages = (-1, self.block_tokens, *keys.shape[1:])
        out = varlen_attn(
            query[0].transpose(0, 1),
            keys.view(pages),
            values.view(pages),
            self.query_starts,
            None,
            self.max_queries,
            self.max_keys,
            scale=scaling,
            # How many keys are seen before and after the query's own; -1 is all.
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=True,
            seqused_k=self.key_ends,
            block_table=self.block_table,
        )
        return cast("torch.Tensor", out).unsqueeze(0)


def _int32(values: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)
