"""A client's own pool: the server is told what it holds, and says what it must let go of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple

from kvstore.regularly import Regularly

_PERIOD_S = 0.5
_MOST_AT_ONCE = 4096

Exchange = Callable[[dict[str, object]], Any]
"""Tells the server and returns its answer; ``None``: it is not there."""


class _Held(NamedTuple):
    parent: bytes
    namespace: bytes


class OwnPool:
    """Which blocks the engine's own pool has, and which of them are over. Thread-safe.

    Twice a second what has changed is told, and the answer heard. A server that does not know this client's
    pool (any more) is told all of it.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.on_over: Callable[[], None] = _nothing
        self._exchange = exchange
        self._held: dict[bytes, _Held] = {}
        self._untold: dict[bytes, None] = {}
        self._told: set[bytes] = set()
        self._removed: dict[bytes, None] = {}  # since the server was told that they are there
        self._over: set[bytes] = set()
        self._quarantined: dict[bytes, None] = {}
        self._epoch: object = None
        self._lock = Lock()
        self._regularly: Regularly | None = None

    def __contains__(self, key: bytes) -> bool:
        return key in self._held

    def add(self, key: bytes, parent: bytes, namespace: bytes) -> None:
        """Note that the pool holds a block."""
        with self._lock:
            self._held[key] = _Held(parent, namespace)
            if key not in self._told:
                self._untold[key] = None
            if self._regularly is None:
                self._regularly = Regularly("store-pool", _PERIOD_S, self.exchange)

    def remove(self, key: bytes) -> None:
        """Note that the pool holds a block no longer."""
        with self._lock:
            self._held.pop(key, None)
            self._untold.pop(key, None)
            self._over.discard(key)
            if key in self._told:
                self._told.discard(key)
                self._removed[key] = None

    def ended(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return those of a prompt's blocks that are over, or in quarantine, or follow one that is."""
        with self._lock:
            trusted = next((at for at, key in enumerate(keys) if key in self._quarantined), len(keys))
            return [*(key for key in keys[:trusted] if key in self._over), *keys[trusted:]]

    def over(self) -> list[bytes]:
        """Return the blocks that the pool is to let go of."""
        with self._lock:
            return list(self._over)

    def quarantine(self, key: bytes) -> None:
        """Note that a block is wrong."""
        with self._lock:
            self._quarantined[key] = None

    def end_quarantine(self) -> None:
        """Note that blocks are trusted again, but for those that the pool still has."""
        with self._lock:
            self._quarantined = {key: None for key in self._quarantined if key in self._held}

    def exchange(self) -> None:
        """Tell the server what has changed, and hear what is over."""
        while self._exchange_some():
            pass
        if self._over:
            self.on_over()

    def stop(self) -> None:
        """Tell nothing any more."""
        if self._regularly is not None:
            self._regularly.stop()

    def _exchange_some(self) -> bool:
        """Do so for some; says whether there is more to tell."""
        with self._lock:
            removed = dict.fromkeys(islice(self._removed, _MOST_AT_ONCE))
            # What has gone and is back is to be told as gone first.
            ready = (key for key in self._untold if key not in self._removed or key in removed)
            added = {key: self._held[key] for key in islice(ready, _MOST_AT_ONCE)}
            known_before = set(self._quarantined)
        answer = self._exchange(
            {
                "epoch": self._epoch,
                "added": [
                    [key.hex(), held.parent.hex(), held.namespace.hex()] for key, held in added.items()
                ],
                "removed": [key.hex() for key in removed],
            }
        )
        if answer is None:
            return False
        with self._lock:
            if answer["epoch"] != self._epoch:
                self._epoch = answer["epoch"]
                self._told.clear()
                self._removed.clear()
                self._untold = dict.fromkeys(self._held)
                return bool(self._held)
            for key in removed:
                self._removed.pop(key, None)
            for key, held in added.items():
                if self._held.get(key) is held:
                    self._untold.pop(key, None)
                    self._told.add(key)
                else:
                    self._removed[key] = None
            self._hear(answer, known_before)
            return len(added) == _MOST_AT_ONCE or len(removed) == _MOST_AT_ONCE

    def _hear(self, answer: dict[str, Any], known_before: set[bytes]) -> None:
        self._over = {key for key in map(bytes.fromhex, answer["over"]) if key in self._told}
        kept_out = dict.fromkeys(map(bytes.fromhex, answer["quarantined"]))
        fresh = {key: None for key in self._quarantined if key not in known_before}
        self._quarantined = kept_out | fresh


def _nothing() -> None:
    """Nobody watches."""
