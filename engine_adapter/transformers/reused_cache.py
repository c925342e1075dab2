"""A cache of transformers that begins with what a store had, and leaves what is computed there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from engine_adapter.transformers.blocks import States
from engine_adapter.transformers.rows import Row
from kvstore.errors import RequestError

if TYPE_CHECKING:
    from engine_adapter.transformers.prefix_cache import PrefixCache


class ReusedCache(DynamicCache):
    """Keys and values of one batch, for ``generate`` or for forward calls of the model it was begun for.

    The first ``num_reused`` columns are there from the start. Blocks that fill up are stored at once.
    """

    def __init__(self, owner: PrefixCache, rows: list[Row]) -> None:
        super().__init__(config=owner.model.config)
        self._owner = owner
        self._rows = rows
        self._fed: list[torch.Tensor] = []  # tokens of the calls since the last block was filled
        self._num_fed = 0
        self._states: dict[int, States] = {}
        self.num_reused = 0

    def begin_with(self, states: list[States]) -> None:
        """Take in each layer's keys and values of the first columns, ``[rows, heads, columns, dim]``."""
        for layer, (keys, values) in enumerate(states):
            super().update(keys, values, layer)
        self.num_reused = self._num_fed = states[0][0].shape[2] if states else 0

    def rest(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what a forward call still needs: the other columns, their mask and positions.

        For ``model(**cache.rest(input_ids), cache=cache)``; ``generate`` does it by itself.
        """
        num_columns = input_ids.shape[1]
        columns = torch.arange(num_columns, device=input_ids.device)
        pads = torch.tensor([[row.pad] for row in self._rows], device=input_ids.device)
        return {
            "input_ids": input_ids[:, self._num_fed :],
            "attention_mask": (columns >= pads).long(),
            "position_ids": (columns - pads).clamp(min=0)[:, self._num_fed :],
        }

    def feed(
        self, input_ids: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor | None
    ) -> None:
        """Take note of the tokens of a forward call, which is about to begin.

        Raises ``RequestError`` where it is not the call that this cache was begun for.
        """
        num_rows = len(self._rows)
        if input_ids.shape[0] != num_rows and input_ids.shape[0] % num_rows == 0:
            self.batch_repeat_interleave(input_ids.shape[0] // num_rows)
        if input_ids.shape[0] != len(self._rows):
            raise RequestError("cache", f"was begun for {num_rows} prompts, not {input_ids.shape[0]}")
        if any(row.pad for row in self._rows) and (mask is None or positions is None):
            reason = "prompts that are padded need attention_mask and position_ids: see ReusedCache.rest"
            raise RequestError("cache", reason)
        if 0 < self._num_fed == self.num_reused and input_ids.shape[1] > self._num_known() - self._num_fed:
            reason = (
                f"has the first {self.num_reused} columns, and the call computes them again: give a forward"
                " call cache.rest(input_ids); assisted decoding cannot begin with a prefix"
            )
            raise RequestError("cache", reason)
        self._fed.append(input_ids)
        self._num_fed += input_ids.shape[1]
        if input_ids.shape[1] > 1:
            self._note_tokens()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> States:
        states: States = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        self._states[layer_idx] = states
        if layer_idx == len(self.layers) - 1:
            self._store_filled()
            self._states = {}
        return states

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        super().reorder_cache(beam_idx)
        self._choose(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        super().batch_select_indices(indices)
        self._choose(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self._num_fed:
            super().batch_repeat_interleave(repeats)
        self._choose(torch.arange(len(self._rows)).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        self._note_tokens()
        self._num_fed = self.get_seq_length()
        for row in self._rows:
            row.cut(max(0, self._num_fed - row.pad))

    def _num_known(self) -> int:
        return max(row.pad + len(row.tokens) for row in self._rows)

    def _choose(self, rows: torch.Tensor) -> None:
        self._note_tokens()
        self._rows = [self._rows[row].copy() for row in rows.tolist()]

    def _note_tokens(self) -> None:
        """Add the tokens that were fed to their rows; those of the prompt must be the ones known."""
        fed, self._fed = self._fed, []
        if not fed:
            return
        tokens = torch.cat(fed, dim=1).tolist()
        start = self._num_fed - len(tokens[0])
        for row, told in zip(self._rows, tokens, strict=True):
            own = told[max(0, row.pad - start) :]
            at = max(0, start - row.pad)
            known = row.tokens[at : at + len(own)]
            if own[: len(known)] != known:
                raise RequestError("cache", "was begun for another prompt: begin one for each call")
            row.extend(own[len(known) :])

    def _store_filled(self) -> None:
        step = self._owner.shape.block_tokens
        if not any((self._num_fed - row.pad) // step > row.num_offered for row in self._rows):
            return
        self._note_tokens()
        for number, row in enumerate(self._rows):
            num_filled = max(0, self._num_fed - row.pad) // step
            for index in range(row.num_offered, num_filled):
                block = self._block(number, row.pad + index * step, step)
                if block is not None:
                    self._owner.offer(row, index, block)
            row.num_offered = max(row.num_offered, num_filled)

    def _block(self, number: int, column: int, step: int) -> list[States] | None:
        """Return each layer's keys and values of a block; ``None``: not all are there."""
        block = []
        for layer in range(len(self.layers)):
            keys, values = self._states[layer]
            start = column - (self._num_fed - keys.shape[2])  # a window has only the last columns
            if start < 0:
                return None
            block.append((keys[number, :, start : start + step], values[number, :, start : start + step]))
        return block
