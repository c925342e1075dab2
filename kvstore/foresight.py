"""What is known of how blocks will be wanted, told by engines for the tiers to keep what is worth it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from kvstore.clock import Clock
from kvstore.hints import Hint
from kvstore.index import ResidencyIndex
from kvstore.tier import MemoryTier, Tier


class Foresight:
    """Passes on what is told to all tiers that store bytes. Thread-safe; nothing of it blocks on I/O."""

    def __init__(self, tiers: Sequence[Tier], index: ResidencyIndex, clock: Clock) -> None:
        self._tiers = tuple(tiers)
        self._index = index
        self._clock = clock

    def hint(self, keys: Sequence[bytes], hint: Hint) -> None:
        """Pass on what is said of a prompt when its answer has ended and its blocks are stored.

        ``keys`` are all its blocks, in order. Tiers that are written behind hear of it when what is queued
        for them is written; with a full queue they do not.
        """
        for tier in self._tiers:
            tell = partial(self._tell, tier.bit, tuple(keys), hint)
            if isinstance(tier, MemoryTier):
                tell()
            elif self._index.hears(tier.bit):
                tier.pool.write(tell)

    def spare(self, keys: Iterable[bytes]) -> None:
        """Let blocks go after all others, wherever they are, until ``unspare`` was called as often.

        They do go where there is nothing else: only a lease holds a block.
        """
        self._index.spared.spare(keys)

    def unspare(self, keys: Iterable[bytes]) -> None:
        """Take it back, once for each of ``keys``."""
        self._index.spared.unspare(keys)

    def _tell(self, bit: int, keys: Sequence[bytes], hint: Hint) -> None:
        self._index.hear(bit, keys, hint, self._clock.monotonic_s())
