"""Blocks on their way between the pool and our own memory, both ways."""

from __future__ import annotations

from backends.device import DevicePool
from engine_adapter.engine.costs import CostBook
from engine_adapter.engine.landing import Landings
from engine_adapter.engine.storing import StoreQueue
from kvstore.clock import Clock
from kvstore.store import TieredStore


class Traffic:
    """Blocks that are stored and blocks that are loaded. Used by the engine's thread alone."""

    def __init__(self, pool: DevicePool, store: TieredStore, costs: CostBook, clock: Clock) -> None:
        self.stores = StoreQueue(pool, store)
        self.loads = Landings(pool, costs, clock)

    @property
    def is_under_way(self) -> bool:
        """Whether copies have begun of which it is not known yet that they are complete."""
        return self.stores.num_leaving + len(self.loads) > 0

    def tend(self, *, is_idle: bool) -> bool:
        """Give back what complete copies held, begin to store a few blocks; says whether there was any."""
        has_landed = self.loads.end_complete()
        return self.stores.store_some(is_idle=is_idle) or has_landed

    def store_all(self) -> None:
        """Store every block that waits for it; no copy is under way then."""
        self.stores.store_all()
        self.loads.end_all()

    def drop_all(self) -> None:
        """Store nothing more; no copy is under way then."""
        self.stores.drop_all()
        self.loads.end_all()
