"""One forward step: chunks of several sequences in, logits of their last tokens out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from transformers import PreTrainedModel

from backends.device import DevicePool
from engine_adapter.engine.attention import AttentionBackend, PagedCache, PlansDecodes, Span
from engine_adapter.engine.decode_graphs import DecodeGraphs, GraphSetup
from engine_adapter.engine.kv_forms import pool_layers
from engine_adapter.engine.lora import Adapters


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence to compute, at positions ``start`` and following.

    ``blocks`` is the sequence's block table and covers positions 0 to ``start + len(tokens)``; the
    blocks before ``start`` hold their keys and values already. ``num_logits`` says of how many of the last
    tokens the logits are wanted. ``lora`` names the adapter to compute with, ``None``: the model alone.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    num_logits: int
    lora: str | None = None

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + len(self.tokens)

    @property
    def is_plain_decode(self) -> bool:
        """Whether it is a single token, with its logits, for the model alone."""
        return len(self.tokens) == 1 and self.num_logits == 1 and self.lora is None


class ModelRunner:
    """Runs a model over the pool. Used by the engine's thread alone.

    ``key_scales`` belong to pools in 8 bits. ``num_clamped`` counts keys that were beyond their range.
    With ``graphs``, and an attention that allows for it, steps that only decode are recorded and replayed,
    which takes the last block of the pool; pools in 8 bits do without. ``has_recorded`` tells whether the
    last step took longer for that.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        pool: DevicePool,
        attention: AttentionBackend,
        adapters: Adapters | None = None,
        key_scales: torch.Tensor | None = None,
        graphs: GraphSetup | None = None,
    ) -> None:
        self._model = model
        self._pool = pool
        self._attention = attention
        self._adapters = adapters or Adapters()
        self._device = pool.keys_and_values.device
        self._clamped = torch.zeros((), dtype=torch.int64, device=self._device)
        self._layers = pool_layers(pool, key_scales, self._clamped)
        self.num_clamped = 0
        self.has_recorded = False
        self._graphs: DecodeGraphs | None = None
        if graphs and isinstance(attention, PlansDecodes) and pool.value_scales is None:
            scratch_page, step = pool.set_aside() * pool.pages_per_block, pool.shape.block_tokens
            self._graphs = DecodeGraphs(model, self._layers, attention, step, scratch_page, graphs)

    def model_changed(self) -> None:
        """Take note that the model's weights were changed."""
        if self._graphs:
            self._graphs.forget()

    @torch.inference_mode()
    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Compute all ``chunks`` in one batch and write their keys and values into the pool.

        Returns fp32 logits ``[sum of num_logits, vocab_size]``, those after each chunk's last tokens, in
        order. Blocks that are written must be private.
        """
        step = self._pool.shape.block_tokens
        begins = list(accumulate((len(chunk.tokens) for chunk in chunks), initial=0))
        for chunk in chunks:
            blocks = chunk.blocks[: -(-chunk.end // step)]
            self._pool.require_private(blocks[chunk.start // step :])
            self._pool.order_after_loads(blocks)
        spans = [self._span(begin, chunk) for begin, chunk in zip(begins, chunks, strict=False)]
        slots = [slot for span in spans for slot in _slots(span, step)]
        logits = self._replayed(chunks, spans, slots)
        if logits is None:
            logits = self._computed(chunks, spans, slots)
        if self._device.type == "cuda":
            # A step is timed. Copies beside it go on.
            torch.cuda.current_stream(self._device).synchronize()
        self.num_clamped = int(self._clamped)
        return logits

    def _replayed(
        self, chunks: Sequence[Chunk], spans: Sequence[Span], slots: Sequence[int]
    ) -> torch.Tensor | None:
        self.has_recorded = False
        if self._graphs is None or not all(chunk.is_plain_decode for chunk in chunks):
            return None
        logits = self._graphs.logits(spans, [chunk.tokens[0] for chunk in chunks], slots)
        self.has_recorded = self._graphs.has_recorded
        return logits

    def _computed(self, chunks: Sequence[Chunk], spans: Sequence[Span], slots: Sequence[int]) -> torch.Tensor:
        wanted = [
            row
            for span, chunk in zip(spans, chunks, strict=True)
            for row in range(span.rows.stop - chunk.num_logits, span.rows.stop)
        ]
        with self._adapters.step(*_loras(chunks), self._device):
            output = self._model(
                input_ids=self._row([token for chunk in chunks for token in chunk.tokens]),
                position_ids=self._row([pos for chunk in chunks for pos in range(chunk.start, chunk.end)]),
                cache=PagedCache(self._layers, self._indices(slots)),
                use_cache=True,
                logits_to_keep=self._indices(wanted),
                attend=self._attention.plan(
                    spans, self._pool.shape.block_tokens, self._model.dtype, self._device
                ),
            )
        logits: torch.Tensor = output.logits[0].float()
        return logits

    def _span(self, begin: int, chunk: Chunk) -> Span:
        num_blocks = -(-chunk.end // self._pool.shape.block_tokens)
        pages = tuple(block * self._pool.pages_per_block for block in chunk.blocks[:num_blocks])
        return Span(begin, chunk.start, chunk.end, pages)

    def _indices(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def _row(self, values: Sequence[int]) -> torch.Tensor:
        return self._indices(values).unsqueeze(0)


def _loras(chunks: Sequence[Chunk]) -> tuple[list[str | None], list[str | None]]:
    """Return the adapter of each row, and of each row that logits are made of."""
    all_rows = [chunk.lora for chunk in chunks for _ in chunk.tokens]
    return all_rows, [chunk.lora for chunk in chunks for _ in range(chunk.num_logits)]


def _slots(span: Span, block_tokens: int) -> list[int]:
    """Return the pool slots that the span's tokens are written to."""
    return [
        span.blocks[position // block_tokens] * block_tokens + position % block_tokens
        for position in range(span.start, span.end)
    ]
