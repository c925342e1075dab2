"""Computes a share of the hits all the same, and compares: the audit of everything that is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from backends.device import DevicePool
from backends.kv_shape import KVShape
from engine_adapter.closeness import are_close
from engine_adapter.engine.sequence import Sequence
from engine_adapter.witnesses import EverySoMany
from kvstore.errors import LeaseExpiredError, StoreClosedError
from kvstore.leases import Hit
from kvstore.loading import Ticket
from kvstore.store import TieredStore

MOST_WITNESSES = 64
"""Blocks that are loaded to be compared, of all prompts; staging memory should hold as many."""


@dataclass(slots=True)
class VerifyTally:
    """Blocks compared, and those of them found wrong. What has not arrived in time is not compared."""

    num_compared: int = 0
    num_wrong: int = 0


class Verifier:
    """Loads blocks of chosen prompts beside their computing, and quarantines those that differ.

    What is loaded for this is never used. Each layer's keys and values are compared by themselves. Used by
    the engine's thread alone.
    """

    def __init__(self, pool: DevicePool, store: TieredStore, share: float) -> None:
        self.tally = VerifyTally()
        self._pool = pool
        self._store = store
        self._chosen = EverySoMany(share)
        self._witnesses: dict[int, list[tuple[int, Ticket]]] = {}

    def selects(self) -> bool:
        """Say whether the next hit is to be verified: every so many, as the share says."""
        return self._chosen.chooses()

    def summon(self, sequence: Sequence, hit: Hit, is_loadable: Callable[[int], bool]) -> None:
        """Begin to load blocks of ``hit``, evenly spread; the lease stays the caller's.

        All hits that are verified at a time share a bounded number of loads, half of what is left each.
        """
        num_free = MOST_WITNESSES - sum(map(len, self._witnesses.values()))
        if not num_free:
            return
        loadable = [index for index in range(len(hit.tiers)) if is_loadable(index)]
        stride = -(-len(loadable) // -(-num_free // 2)) or 1
        witnesses = self._witnesses.setdefault(sequence.number, [])
        for index in loadable[::stride]:
            try:
                # Nobody waits for it, so it is never late.
                witnesses.append((index, self._store.load(hit, index, math.inf)))
            except (LeaseExpiredError, StoreClosedError):
                return

    def compare(self, sequence: Sequence) -> None:
        """Compare what was loaded with what ``sequence`` has computed; its blocks are complete."""
        for index, ticket in self._witnesses.pop(sequence.number, ()):
            loaded = ticket.take() if ticket.done() else None
            if loaded is None:
                ticket.abandon()
                continue
            try:
                is_equal = self._is_equal(sequence.blocks[index], loaded.data)
            finally:
                loaded.release()
            self.tally.num_compared += 1
            if not is_equal:
                self.tally.num_wrong += 1
                self._store.quarantine(sequence.keys[index])

    def dismiss(self, sequence: Sequence) -> None:
        """Give up what was loaded for ``sequence``; idempotent."""
        for _, ticket in self._witnesses.pop(sequence.number, ()):
            ticket.abandon()

    def _is_equal(self, block: int, stored: memoryview) -> bool:
        shape = self._pool.shape
        if len(stored) != shape.block_bytes:
            return False
        computed = bytearray(shape.block_bytes)
        self._pool.read_block(block, memoryview(computed)).wait()
        return is_close(shape, memoryview(computed), stored)


def is_close(shape: KVShape, computed: memoryview, stored: memoryview) -> bool:
    """Say whether two blocks, as they lie at rest, are the same but for rounding."""
    return are_close(_numbers(shape, computed), _numbers(shape, stored), shape.dtype)


def _numbers(shape: KVShape, data: memoryview | bytearray) -> torch.Tensor:
    """Return each layer's keys and each layer's values in a row of their own.

    Keys in 8 bits stay in units of their channel's scale, which is the same in every block.
    """
    kept, *scales = shape.views(data)
    numbers = kept.float()
    for scale in scales:
        numbers[:, 1:] *= scale
    return numbers.reshape(2 * shape.num_layers, -1)
