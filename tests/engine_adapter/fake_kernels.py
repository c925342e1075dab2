"""FlashInfer's wrappers and torch's paged kernel in plain torch, as strict about what they are given.

Signatures are those of the libraries. What computes uses tensors alone and no numbers read from them, as it
must on a device whose work is recorded.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn.attention import varlen

PAGES_SEEN = 32  # where it is recorded FlashInfer knows no most pages of a sequence; the fake needs one


def install_flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", sys.modules[__name__])


def install_varlen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)


def varlen_attn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    num_splits: int | None = None,
) -> torch.Tensor:
    assert seqused_k is not None
    assert block_table is not None
    assert scale is not None
    assert (cu_seq_k, return_aux, num_splits) == (None, None, None)
    require_pages(query, key, value)
    assert enable_gqa or query.shape[1] == key.shape[2]
    num = len(seqused_k)
    for numbers, shape in ((cu_seq_q, (num + 1,)), (seqused_k, (num,)), (block_table, (num, -1))):
        require_int32(numbers, shape, query.device)
    if get_proxy_mode() is None:
        assert int(cu_seq_q.diff().max()) == max_q
        assert int(seqused_k.max()) <= max_k <= block_table.shape[1] * key.shape[1]
    assert window_size[1] == 0
    return attend(query, key, value, cu_seq_q, seqused_k, block_table, scale, window_size[0], 0.0)


class Wrapper:
    """What both of FlashInfer's wrappers do."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str, *, use_cuda_graph: bool) -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert float_workspace_buffer.is_contiguous()
        assert kv_layout == "NHD"
        self.device = float_workspace_buffer.device
        self.use_cuda_graph = use_cuda_graph
        self.num_plans = 0
        self.buffers: list[torch.Tensor] = []
        self.starts_of_queries = torch.empty(0)
        self.facts: dict[str, Any] = {}

    def take(self, starts: torch.Tensor, numbers: torch.Tensor, last: torch.Tensor, **facts: Any) -> None:
        num = len(last)
        require_int32(starts, (num + 1,), torch.device("cpu"))
        require_int32(last, (num,), torch.device("cpu"))
        require_int32(numbers, (int(starts[-1]),), torch.device("cpu"))
        assert bool((starts.diff() > 0).all())
        assert bool((last >= 1).all())
        assert bool((last <= facts["page_size"]).all())
        assert facts["num_qo_heads"] % facts["num_kv_heads"] == 0
        self.num_plans += 1
        self.facts = facts
        if self.use_cuda_graph:
            assert get_proxy_mode() is None, "plan cannot be recorded"
            assert num == len(self.buffers[2]), "the batch size is fixed"
            for buffer, given in zip(self.buffers, (starts, numbers, last), strict=True):
                buffer[: len(given)].copy_(given)
        else:
            self.buffers = [given.to(self.device) for given in (starts, numbers, last)]

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        key, value = paged_kv_cache
        facts = self.facts
        require_pages(q, key, value)
        assert q.is_contiguous()
        assert (q.dtype, key.dtype) == (facts["q_data_type"], facts["kv_data_type"])
        assert q.shape[1:] == (facts["num_qo_heads"], facts["head_dim"])
        assert key.shape[1:] == (facts["page_size"], facts["num_kv_heads"], facts["head_dim"])
        starts, numbers, last = self.buffers
        nums = starts.diff()
        ends = (nums - 1) * facts["page_size"] + last
        most = PAGES_SEEN if self.use_cuda_graph else int(nums.max())
        places = starts[:-1, None] + torch.arange(most, device=self.device)
        table = numbers[places.clamp(max=len(numbers) - 1)]
        bounds = facts["sm_scale"], facts["window_left"], facts["logits_soft_cap"]
        return attend(q, key, value, self.starts_of_queries, ends, table, *bounds)


class BatchPrefillWithPagedKVCacheWrapper(Wrapper):
    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph=False)

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        *,
        causal: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
    ) -> None:
        assert causal
        assert head_dim_vo in (None, head_dim_qk)
        require_int32(qo_indptr, (len(paged_kv_indptr),), torch.device("cpu"))
        self.starts_of_queries = qo_indptr
        self.take(
            paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len,
            num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads, head_dim=head_dim_qk, page_size=page_size,
            sm_scale=sm_scale, window_left=window_left, logits_soft_cap=logits_soft_cap,
            q_data_type=q_data_type, kv_data_type=kv_data_type,
        )  # fmt: skip


class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph=use_cuda_graph)
        self.use_tensor_cores = use_tensor_cores
        buffers = [paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer]
        for buffer in buffers if use_cuda_graph else ():
            assert buffer is not None
            require_int32(buffer, (-1,), self.device)
            self.buffers.append(buffer)

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: str | torch.dtype | None = "float16",
        kv_data_type: str | torch.dtype | None = None,
    ) -> None:
        self.starts_of_queries = torch.arange(len(last_page_len) + 1, dtype=torch.int32)
        self.take(
            indptr, indices, last_page_len,
            num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, page_size=page_size,
            sm_scale=sm_scale, window_left=window_left, logits_soft_cap=logits_soft_cap,
            q_data_type=q_data_type, kv_data_type=kv_data_type,
        )  # fmt: skip


def require_pages(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Kernels read pages at one distance, whose tokens lie side by side, and as many of both sides."""
    assert query.dim() == 3
    assert query.stride(-1) == 1
    assert key.shape == value.shape
    assert key.stride() == value.stride()
    _, size, heads, dim = key.shape
    assert key.stride()[1:] == (heads * dim, dim, 1)
    assert key.stride(0) >= size * heads * dim


def require_int32(numbers: torch.Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    assert numbers.dtype == torch.int32
    assert numbers.device == device
    assert numbers.is_contiguous()
    assert all(wanted in (-1, found) for wanted, found in zip(shape, numbers.shape, strict=True))


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_starts: torch.Tensor,
    key_ends: torch.Tensor,
    table: torch.Tensor,
    scale: float,
    window_left: int,
    softcap: float,
) -> torch.Tensor:
    """Attend causally, the last query of each sequence to the last key; a window of -1 sees all."""
    rows = torch.arange(len(query))
    sequence = torch.searchsorted(query_starts[1:].contiguous(), rows, right=True)
    position = key_ends[sequence] - query_starts[sequence + 1] + rows
    keys = torch.arange(table.shape[1] * key.shape[1])
    distance = position[:, None] - keys
    is_hidden = (distance < 0) | ((distance > window_left) if window_left >= 0 else torch.tensor(False))
    num_shared = query.shape[1] // key.shape[2]
    seen, read = (
        side[table[sequence]].flatten(1, 2).float().repeat_interleave(num_shared, 2) for side in (key, value)
    )
    scores = torch.einsum("rhd,rkhd->rhk", query.float(), seen) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    weights = torch.softmax(scores.masked_fill(is_hidden[:, None], -torch.inf), -1)
    # What is hidden may hold anything, and 0 times a NaN is none.
    read = read.masked_fill(is_hidden[..., None, None], 0.0)
    return torch.einsum("rhk,rkhd->rhd", weights, read).to(query.dtype)
