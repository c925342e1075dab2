"""torch's paged variable-length attention: one kernel for the whole batch, on a GPU that offers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

import torch

from backends.kv_shape import Layout
from engine_adapter.engine.attention import Attend, DecodePlan, Span
from engine_adapter.engine.kv_forms import Kept
from engine_adapter.engine.pages import int32, key_ends, page_table, pages_of


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
        return _Step(
            block_tokens=block_tokens,
            query_starts=int32([0, *accumulate(num_queries)]).to(device),
            key_ends=key_ends(spans).to(device),
            page_table=page_table(spans).to(device),
            max_queries=max(num_queries),
            max_keys=max(span.end for span in spans),
        )

    def decode_plan(
        self,
        batch: int,
        most_pages: int,
        block_tokens: int,
        device: torch.device,
    ) -> DecodePlan:
        return _Step(
            block_tokens=block_tokens,
            query_starts=torch.arange(batch + 1, dtype=torch.int32, device=device),
            key_ends=torch.ones(batch, dtype=torch.int32, device=device),
            page_table=torch.zeros(batch, most_pages, dtype=torch.int32, device=device),
            max_queries=1,
            max_keys=most_pages * block_tokens,
        )


@dataclass(frozen=True, slots=True)
class _Step:
    block_tokens: int
    query_starts: torch.Tensor
    key_ends: torch.Tensor
    page_table: torch.Tensor
    max_queries: int
    max_keys: int

    def fill(self, spans: Sequence[Span]) -> None:
        table = page_table(spans)
        self.page_table[:, : table.shape[1]].copy_(table)
        self.key_ends.copy_(key_ends(spans))

    def __call__(
        self,
        query: torch.Tensor,
        keys: Kept,
        values: Kept,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - absent from an older torch

        paged_keys, paged_values = pages_of(keys, values, self.block_tokens)
        if softcap is not None:
            raise NotImplementedError("it cannot cap scores")
        out = varlen_attn(
            query[0].transpose(0, 1),
            paged_keys,
            paged_values,
            self.query_starts,
            None,
            self.max_queries,
            self.max_keys,
            scale=scaling,
            # How many keys are seen before and after the query's own; -1 is all.
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=True,
            seqused_k=self.key_ends,
            block_table=self.page_table,
        )
        return cast("torch.Tensor", out).unsqueeze(0)
