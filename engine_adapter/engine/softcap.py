"""Attention whose scores are capped, which torch's own does not offer: plain arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Queries of one head at a time: their scores over a long prompt are many, and in fp32.
_ROWS = 64


def capped_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    softcap: float,
) -> torch.Tensor:
    """Attend with the scores ``softcap * tanh(scaling * query @ key / softcap)``, computed in fp32.

    ``query`` is ``[n, num_heads, rows, head_dim]``, ``key`` and ``value`` are
    ``[n, num_kv_heads, num_keys, head_dim]``. ``mask`` is added to the scores, ``[n or 1, 1, rows or 1,
    num_keys]``. Returns what is shaped like ``query``.
    """
    # A product in 16 bits would round scores that a cap makes close.
    key = key.float()
    queries = torch.split(query.float(), _ROWS, 2)
    masks: Sequence[torch.Tensor | None] = [None] * len(queries)
    if mask is not None:
        masks = torch.split(mask.expand(-1, -1, query.shape[2], -1), _ROWS, 2)
    parts = [
        _attend(rows, key, value, rows_mask, scaling, softcap)
        for rows, rows_mask in zip(queries, masks, strict=True)
    ]
    return torch.cat(parts, 2)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    softcap: float,
) -> torch.Tensor:
    # Heads that share keys stand in as queries of one head: each key is then read once, not per head.
    grouped = query.reshape(len(query), key.shape[1], -1, key.shape[3])
    scores = (grouped @ key.transpose(2, 3)).mul_(scaling / softcap).tanh_().mul_(softcap)
    if mask is not None:
        scores.view(*query.shape[:3], -1).add_(mask)
    return (torch.softmax(scores, -1).to(value.dtype) @ value).view(query.shape)
