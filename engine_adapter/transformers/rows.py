"""The prompts of a batch, row by row: where they begin, which tokens they have, and their blocks' keys.

::

    column     0   1   2   3   4   5   6   7   8   9
    row 0      a   b   c   d   e   f   g   h   i   j      pad 0
    row 1      -   -   -   k   l   m   n   o   p   q      pad 3: its first token stands in column 3
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvstore.errors import RequestError
from kvstore.keys import chain_keys


class Row:
    """One prompt and what was generated after it. Whole blocks have keys."""

    __slots__ = ("_block_tokens", "_namespace", "keys", "num_offered", "pad", "tokens")

    def __init__(self, pad: int, tokens: Sequence[int], namespace: bytes, block_tokens: int) -> None:
        self._namespace = namespace
        self._block_tokens = block_tokens
        self.pad = pad
        self.tokens: list[int] = []
        self.keys: list[bytes] = []
        self.num_offered = 0
        """Blocks that the store has, or was offered."""
        self.extend(tokens)

    def copy(self) -> Row:
        """Return a row that goes on by itself."""
        other = Row(self.pad, (), self._namespace, self._block_tokens)
        other.tokens, other.keys, other.num_offered = self.tokens.copy(), self.keys.copy(), self.num_offered
        return other

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens at the end."""
        self.tokens += tokens
        parent, start = self.parent(len(self.keys)), len(self.keys) * self._block_tokens
        self.keys += chain_keys(self._namespace, self.tokens[start:], self._block_tokens, parent)

    def cut(self, num_tokens: int) -> None:
        """Drop all but the first ``num_tokens`` tokens."""
        del self.tokens[num_tokens:]
        del self.keys[num_tokens // self._block_tokens :]
        self.num_offered = min(self.num_offered, len(self.keys))

    def parent(self, index: int) -> bytes:
        """Return the key of the block before block ``index``; empty: there is none."""
        return self.keys[index - 1] if index else b""


def pads_of(mask: torch.Tensor | None, input_ids: torch.Tensor) -> list[int]:
    """Return how many columns stand before each row's first token.

    ``mask`` and ``input_ids`` are ``[rows, columns]``. Raises ``RequestError`` for rows with gaps.
    """
    if mask is None:
        return [0] * input_ids.shape[0]
    if mask.shape != input_ids.shape:
        raise RequestError("attention_mask", f"has the shape {tuple(mask.shape)}, not that of input_ids")
    present = mask.bool().cpu()
    pads = (~present).sum(dim=1)
    columns = torch.arange(mask.shape[1]).expand_as(present)
    if not torch.equal(present, columns >= pads[:, None]):
        raise RequestError("attention_mask", "prompts must be padded on the left, without gaps")
    return [int(pad) for pad in pads]
