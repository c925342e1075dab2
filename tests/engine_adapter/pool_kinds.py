"""The pools that an engine may stand on: two layouts, and copies that are made late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest

from backends.copies import Copies
from backends.device import DevicePool
from backends.kv_shape import Layout
from kvstore.arena import Arena, Slot
from tests.late_cuda import LateCuda


class WipedArena(Arena):
    """Overwrites what is given back, so that whoever still reads it shows."""

    def take_back(self, slot: Slot) -> None:
        slot.view[:] = b"\x42" * len(slot.view)
        super().take_back(slot)


class WipedPool(DevicePool):
    """Likewise, with its blocks."""

    def _set_free(self, block: int) -> None:
        for numbers in self._memory._numbers(block):
            numbers.fill_(7.0)
        super()._set_free(block)


@dataclass(frozen=True)
class PoolKind:
    layout: Layout
    make_copies: Callable[[], Copies | None] = lambda: None
    pool: type[DevicePool] = DevicePool
    arena: type[Arena] = Arena


def moody_copies(seed: int = 0) -> Copies:
    """Return copies of which some go on whenever somebody asks after one, of either direction."""
    cuda, random = LateCuda(), Random(seed)

    def go_on() -> None:
        random.choice(cuda.made).run(random.randrange(4))

    cuda.on_query = go_on
    return cuda.copies


POOL_KINDS = {
    "layer-first": PoolKind("layer-first"),
    "block-first, copied late": PoolKind("block-first", moody_copies, WipedPool, WipedArena),
}

in_every_pool = pytest.mark.parametrize("pool_kind", POOL_KINDS, indirect=True)
