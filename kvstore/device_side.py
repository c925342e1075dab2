"""What the store and the engine's own block pool tell each other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence

from kvstore.clock import Clock
from kvstore.keeping import KeepingIndex
from kvstore.namespace import Namespace
from kvstore.sweeper import Sweeper
from kvstore.tier import DEVICE_BIT


class DeviceSide(ABC):
    """The part of a store that the engine's pool uses. Thread-safe."""

    _index: KeepingIndex
    _clock: Clock
    _sweeper: Sweeper

    @abstractmethod
    def meet(self, namespace: Namespace) -> None:
        """Note to whom a namespace belongs."""

    def device_added(self, key: bytes, parent: bytes, namespace: Namespace | None = None) -> None:
        """Note that the engine's pool now holds this block, computed or loaded; offered root first."""
        digest = b""
        if namespace is not None:
            digest = namespace.digest
            self.meet(namespace)
        self._index.report(DEVICE_BIT, key, parent, digest, self._clock.wall_ms())

    def device_removed(self, key: bytes) -> None:
        """Note that the engine's pool no longer holds this block."""
        self._index.unreport(DEVICE_BIT, key, self._clock.wall_ms())

    def ended(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return those of ``keys`` that the engine's pool must not share any more.

        Their time is over, or they are in quarantine.
        """
        return self._index.ended(keys, self._clock.wall_ms())

    def over_on_device(self) -> list[bytes]:
        """Return the blocks whose time is over that the engine's pool still has: it is to let go of them.

        They are there until ``device_removed``; quick where there are none.
        """
        return self._index.over_in_pool()

    def quarantined(self, keys: Collection[bytes]) -> list[bytes]:
        """Return those of ``keys`` that are in quarantine themselves."""
        if not self._index.num_quarantined:
            return []
        return [key for key in keys if self._index.is_quarantined(key)]

    def watch_device(self, on_over: Callable[[], None]) -> None:
        """Have ``on_over`` called, on another thread, while ``over_on_device`` names blocks."""
        self._sweeper.on_over_in_pool = on_over
