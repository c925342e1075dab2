"""FlashInfer's paged attention, where that library is installed; it is imported by the first plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, chain
from typing import Any, NamedTuple, Self, cast

import torch

from backends.kv_shape import Layout
from engine_adapter.engine.attention import Attend, DecodePlan, Span
from engine_adapter.engine.kv_forms import Kept
from engine_adapter.engine.pages import int32, pages_of

# For partial results of sequences that several processors share. FlashInfer's own examples take 128 MiB, which
# wide heads exceed; planning fails then.
_WORKSPACE_BYTES = 384 * 2**20
# With fewer query heads for each key, plain cores decode faster than matrix units.
_LEAST_HEADS_PER_KEY_FOR_TENSOR_CORES = 4
_LAYOUT = "NHD"


class FlashInferAttention:
    """FlashInfer's wrappers: one for steps that only decode, one for all others, of each kind of layer.

    A wrapper is planned for one step at a time, so the step planned last is the one to compute. Planning
    raises ``ImportError`` where FlashInfer is not installed; computing raises what FlashInfer does for
    shapes and dtypes that it does not take.
    """

    name = "flashinfer"
    layout: Layout = "block-first"

    def __init__(self) -> None:
        self._workspace = cache(_new_workspace)
        self._wrappers: dict[tuple[bool, _Kind], Any] = {}

    def plan(
        self,
        spans: Sequence[Span],
        block_tokens: int,
        dtype: torch.dtype,  # noqa: ARG002 - FlashInfer masks by itself
        device: torch.device,
    ) -> Attend:
        workspace, pages = self._workspace(device), _Pages.of(spans, block_tokens)
        is_decode = all(span.is_decode for span in spans)

        def planned(kind: _Kind) -> Any:
            wrapper = self._wrappers.get((is_decode, kind))
            if wrapper is None:
                wrapper = _decoder(kind, workspace) if is_decode else _prefiller(workspace)
                self._wrappers[is_decode, kind] = wrapper
            (_plan_decode if is_decode else _plan_prefill)(wrapper, kind, pages)
            return wrapper

        return _Step(block_tokens, cache(planned))

    def decode_plan(self, batch: int, most_pages: int, block_tokens: int, device: torch.device) -> DecodePlan:
        buffers = {
            "paged_kv_indptr_buffer": torch.zeros(batch + 1, dtype=torch.int32, device=device),
            "paged_kv_indices_buffer": torch.zeros(batch * most_pages, dtype=torch.int32, device=device),
            "paged_kv_last_page_len_buffer": torch.ones(batch, dtype=torch.int32, device=device),
        }
        return _DecodePlan(self._workspace(device), block_tokens, buffers)


class _Kind(NamedTuple):
    """What a wrapper is planned for beside the pages of a step."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    query_dtype: torch.dtype
    kv_dtype: torch.dtype
    scaling: float
    window: int | None
    softcap: float | None

    @property
    def options(self) -> dict[str, Any]:
        """What both wrappers' ``plan`` take by name."""
        return {
            "sm_scale": self.scaling,
            # How many keys are seen before the query's own; -1 is all.
            "window_left": -1 if self.window is None else self.window - 1,
            "logits_soft_cap": self.softcap or 0.0,
            "q_data_type": self.query_dtype,
            "kv_data_type": self.kv_dtype,
        }


@dataclass(frozen=True, slots=True)
class _Pages:
    """The pages of a step one after another, int32 on the CPU, where FlashInfer plans."""

    block_tokens: int
    query_starts: torch.Tensor
    starts: torch.Tensor
    numbers: torch.Tensor
    last_lengths: torch.Tensor

    @classmethod
    def of(cls, spans: Sequence[Span], block_tokens: int) -> Self:
        nums = [-(-span.end // block_tokens) for span in spans]
        used = (span.blocks[:num] for span, num in zip(spans, nums, strict=True))
        return cls(
            block_tokens,
            query_starts=int32([0, *accumulate(span.end - span.start for span in spans)]),
            starts=int32([0, *accumulate(nums)]),
            numbers=int32(list(chain.from_iterable(used))),
            last_lengths=int32([(span.end - 1) % block_tokens + 1 for span in spans]),
        )


@dataclass(frozen=True, slots=True)
class _Step:
    """``planned`` gives the wrapper for a kind, planned for this step."""

    block_tokens: int
    planned: Callable[[_Kind], Any]

    def __call__(
        self,
        query: torch.Tensor,
        keys: Kept,
        values: Kept,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        pages = pages_of(keys, values, self.block_tokens)
        num_kv_heads, head_dim = pages[0].shape[2:]
        kind = _Kind(
            query.shape[1], num_kv_heads, head_dim, query.dtype, pages[0].dtype, scaling, window, softcap
        )
        out = self.planned(kind).run(query[0].transpose(0, 1).contiguous(), pages)
        return cast("torch.Tensor", out).unsqueeze(0)


@dataclass(slots=True)
class _DecodePlan:
    """Wrappers over buffers that stay where they are, which those of all kinds share."""

    workspace: torch.Tensor
    block_tokens: int
    buffers: dict[str, torch.Tensor]
    pages: _Pages | None = None
    wrappers: dict[_Kind, Any] = field(default_factory=dict)

    def fill(self, spans: Sequence[Span]) -> None:
        self.pages = _Pages.of(spans, self.block_tokens)
        for kind, wrapper in self.wrappers.items():
            _plan_decode(wrapper, kind, self.pages)

    def __call__(
        self,
        query: torch.Tensor,
        keys: Kept,
        values: Kept,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        return _Step(self.block_tokens, self._planned)(query, keys, values, scaling, window, softcap)

    def _planned(self, kind: _Kind) -> Any:
        if kind not in self.wrappers:
            wrapper = _decoder(kind, self.workspace, use_cuda_graph=True, **self.buffers)
            _plan_decode(wrapper, kind, cast("_Pages", self.pages))
            self.wrappers[kind] = wrapper
        return self.wrappers[kind]


def _new_workspace(device: torch.device) -> torch.Tensor:
    import flashinfer  # noqa: F401, PLC0415 - no memory for a library that is not there

    # All wrappers of a device share it: their kernels run one after another. Some expect zeros at first.
    return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def _prefiller(workspace: torch.Tensor) -> Any:
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper  # noqa: PLC0415 - it is optional

    return BatchPrefillWithPagedKVCacheWrapper(workspace, _LAYOUT)


def _decoder(kind: _Kind, workspace: torch.Tensor, **graph: Any) -> Any:
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper  # noqa: PLC0415 - likewise

    heads_per_key = kind.num_heads // kind.num_kv_heads
    use_tensor_cores = heads_per_key >= _LEAST_HEADS_PER_KEY_FOR_TENSOR_CORES
    return BatchDecodeWithPagedKVCacheWrapper(workspace, _LAYOUT, use_tensor_cores=use_tensor_cores, **graph)


def _plan_prefill(wrapper: Any, kind: _Kind, pages: _Pages) -> None:
    wrapper.plan(
        pages.query_starts,
        pages.starts,
        pages.numbers,
        pages.last_lengths,
        kind.num_heads,
        kind.num_kv_heads,
        kind.head_dim,
        pages.block_tokens,
        causal=True,
        **kind.options,
    )


def _plan_decode(wrapper: Any, kind: _Kind, pages: _Pages) -> None:
    wrapper.plan(
        pages.starts,
        pages.numbers,
        pages.last_lengths,
        kind.num_heads,
        kind.num_kv_heads,
        kind.head_dim,
        pages.block_tokens,
        **kind.options,
    )
