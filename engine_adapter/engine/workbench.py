"""Blocks of the pool that are set aside to compute in, for nobody's request."""

from __future__ import annotations

from collections.abc import Sequence

from backends.device import DevicePool
from engine_adapter.engine.costs import CostBook
from engine_adapter.engine.runner import Chunk, ModelRunner
from engine_adapter.engine.verifying import is_close
from policies.cost_model import Work

_STEP_S = 0.03
"""About the longest that a request waits for a step made here, unless a single block takes longer."""
_LEAST_TOKENS = 2048


class Workbench:
    """Computes one prompt at a time, from its first token on. Used by the engine's thread alone.

    ``num_clamped`` are the keys beyond their 8 bits that were computed here, for those who count the
    requests'.
    """

    def __init__(
        self, pool: DevicePool, runner: ModelRunner, costs: CostBook, chunk_tokens: int, *, is_wanted: bool
    ) -> None:
        """Without being wanted it has no blocks; ``chunk_tokens`` is the most that a step computes."""
        self.num_clamped = 0
        self._pool = pool
        self._runner = runner
        self._costs = costs
        self._chunk_tokens = chunk_tokens
        self._step = pool.shape.block_tokens
        self._blocks = _set_aside(pool) if is_wanted else ()

    @property
    def num_blocks(self) -> int:
        """How many blocks of a prompt have room."""
        return len(self._blocks)

    def compute(self, tokens: Sequence[int], start: int, lora: str | None) -> int:
        """Compute some of ``tokens`` from ``start`` on, in one short step; returns where it ended."""
        end = start + self._num_next(start, len(tokens))
        num_clamped = self._runner.num_clamped
        blocks = self._blocks[: -(-end // self._step)]
        self._runner.forward([Chunk(tokens[start:end], start, blocks, 0, lora)])
        self.num_clamped += self._runner.num_clamped - num_clamped
        return end

    def is_close(self, index: int, stored: memoryview) -> bool:
        """Say whether ``stored`` is what was computed as block ``index``, but for rounding."""
        shape = self._pool.shape
        return len(stored) == shape.block_bytes and is_close(shape, self._read(self._blocks[index]), stored)

    def published(self, key: bytes) -> memoryview | None:
        """Return a copy of the block that the pool shares under ``key``, which is no use of it."""
        block = self._pool.acquire(key)
        if block is None:
            return None
        try:
            return self._read(block)
        finally:
            self._pool.release([block], is_used=False)

    def _read(self, block: int) -> memoryview:
        out = memoryview(bytearray(self._pool.shape.block_bytes))
        self._pool.read_block(block, out).wait()
        return out

    def _num_next(self, start: int, end: int) -> int:
        cost, most = self._costs.compute(), min(end - start, self._chunk_tokens)
        num = self._step
        while cost and 2 * num <= most and cost.of(Work.prefill(start, start + 2 * num)) <= _STEP_S:
            num *= 2
        return min(num, most)


def _set_aside(pool: DevicePool) -> tuple[int, ...]:
    """Take blocks out of the pool: a 32nd, but those of 2,048 tokens where an eighth has them."""
    least = min(pool.num_blocks // 8, -(-_LEAST_TOKENS // pool.shape.block_tokens))
    num = max(pool.num_blocks // 32, least)
    return tuple(reversed([pool.set_aside() for _ in range(num)]))
