"""A model that reads passages side by side, over a pool in some form."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from backends.device import DevicePool
from engine_adapter.assemble import attention_for
from engine_adapter.engine.kv_forms import layout_for, pool_layers, read
from engine_adapter.engine.models import LoadedModel
from engine_adapter.engine.runner import Chunk, ModelRunner
from kvstore.clock import Clock
from policies.lru import LeafFirstLRU

Kept = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of each layer in fp32, ``[tokens, num_kv_heads, head_dim]``."""


class Reader:
    """Holds ``passages``, ``[passages, tokens]`` of whole blocks each, with room to continue them."""

    def __init__(self, model: LoadedModel, passages: torch.Tensor, num_continued: int) -> None:
        self.shape = shape = model.kv_shape
        self._passages = passages
        self._num_blocks = passages.shape[1] // shape.block_tokens
        blocks_each = self._num_blocks + -(-num_continued // shape.block_tokens)
        attention = attention_for(model)
        self._pool = DevicePool(
            shape, blocks_each * len(passages), model.device, LeafFirstLRU(),
            lambda *_: None, lambda *_: None, Clock(), layout_for(attention.layout, shape),
        )  # fmt: skip
        blocks = self._pool.allocate(self._pool.num_blocks) or []
        self._tables = [blocks[at : at + blocks_each] for at in range(0, len(blocks), blocks_each)]
        self._runner = ModelRunner(model.model, self._pool, attention, key_scales=model.key_scales)
        self._clamped = torch.zeros((), dtype=torch.int64, device=model.device)
        self._layers = pool_layers(self._pool, model.key_scales, self._clamped)
        self._slots = self._passage_slots().to(model.device)

    def read_passages(self) -> torch.Tensor:
        """Compute all passages, and return the logits after each, ``[passages, vocabulary]``."""
        logits = [
            self._runner.forward([Chunk(passage.tolist(), 0, table, num_logits=1)])
            for passage, table in zip(self._passages, self._tables, strict=True)
        ]
        return torch.cat(logits)

    def step(self, tokens: torch.Tensor, index: int) -> torch.Tensor:
        """Continue each passage by one token, number ``index`` behind it; return the logits after it."""
        start = self._passages.shape[1] + index
        chunks = [
            Chunk([token], start, table, num_logits=1)
            for token, table in zip(tokens.tolist(), self._tables, strict=True)
        ]
        return self._runner.forward(chunks)

    def kept(self) -> Kept:
        """Return a copy of the passages' keys and values."""
        return [
            (read(layer.keys, self._slots, torch.float32), read(layer.values, self._slots, torch.float32))
            for layer in self._layers
        ]

    def write(self, kept: Kept) -> int:
        """Put others' keys and values in place of the passages'; return how many numbers were clamped."""
        self._clamped.zero_()
        for layer, (keys, values) in zip(self._layers, kept, strict=True):
            layer.write(self._slots, keys, values)
        return int(self._clamped)

    def blocks_at_rest(self) -> Iterator[memoryview]:
        """Yield the bytes of each block of the passages, in the same memory."""
        data = memoryview(bytearray(self.shape.block_bytes))
        for table in self._tables:
            for block in table[: self._num_blocks]:
                self._pool.read_block(block, data).wait()
                yield data

    def _passage_slots(self) -> torch.Tensor:
        blocks = torch.tensor([table[: self._num_blocks] for table in self._tables]).flatten()
        step = self.shape.block_tokens
        pages = blocks * self._pool.pages_per_block
        return (pages[:, None] * step + torch.arange(step)).flatten()
