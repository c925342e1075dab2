"""What the pools of engines in other processes hold, so that they hear of ends and quarantines too."""

from __future__ import annotations

from collections import Counter
from threading import Lock

from kvstore.device_side import DeviceSide
from kvstore.namespace import Namespace

MOST_POOLED = 262_144
"""Blocks of one engine's pool that are watched."""


class Pools:
    """Counts how many pools hold a block; the store is told of the first and of the last. Thread-safe."""

    def __init__(self, device: DeviceSide) -> None:
        self._device = device
        self._num_pools: Counter[bytes] = Counter()
        self._lock = Lock()

    def open(self) -> EnginePool:
        """Return a new pool that is empty, to be closed."""
        return EnginePool(self)

    def over(self, keys: set[bytes]) -> list[bytes]:
        """Return those of ``keys`` whose time is over."""
        return [key for key in self._device.over_on_device() if key in keys]

    def kept_out(self, keys: set[bytes]) -> list[bytes]:
        """Return those of ``keys`` that are in quarantine."""
        return self._device.quarantined(keys)

    def add(self, key: bytes, parent: bytes, namespace: Namespace) -> None:
        """Note that one more pool holds a block."""
        with self._lock:
            self._num_pools[key] += 1
            self._device.device_added(key, parent, namespace)

    def remove(self, key: bytes) -> None:
        """Note that one pool less holds a block."""
        with self._lock:
            self._num_pools[key] -= 1
            if not self._num_pools[key]:
                del self._num_pools[key]
                self._device.device_removed(key)


class EnginePool:
    """What one engine's pool holds, as it tells. For one thread at a time."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._keys: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: bytes, parent: bytes, namespace: Namespace) -> bool:
        """Note that it holds a block, unless it holds too many to be watched; says whether it is noted."""
        if key not in self._keys and len(self._keys) < MOST_POOLED:
            self._keys.add(key)
            self._pools.add(key, parent, namespace)
        return key in self._keys

    def remove(self, key: bytes) -> None:
        """Note that it holds a block no longer."""
        if key in self._keys:
            self._keys.remove(key)
            self._pools.remove(key)

    def over(self) -> list[bytes]:
        """Return the blocks that it is to let go of, for their time is over."""
        return self._pools.over(self._keys)

    def kept_out(self) -> list[bytes]:
        """Return the blocks that it is to let go of, for they are in quarantine."""
        return self._pools.kept_out(self._keys)

    def close(self) -> None:
        """Note that it is gone."""
        for key in list(self._keys):
            self.remove(key)
