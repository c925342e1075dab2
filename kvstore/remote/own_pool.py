"""A client's own pool: the server is told what it holds, and says what it must let go of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple

from kvstore.regularly import Regularly

_PERIOD_S = 0.5
_MOST_AT_ONCE = 4096
_MOST_BEGINNINGS = 2

Exchange = Callable[[dict[str, object]], Any]
"""Tells the server and returns its answer; ``None``: it is not there."""


class _Held(NamedTuple):
    parent: bytes
    namespace: bytes


class _Changes(NamedTuple):
    """What the server is to be told, and what was in quarantine then."""

    added: dict[bytes, _Held]
    removed: list[bytes]
    quarantined: set[bytes]

    def told(self, epoch: object) -> dict[str, object]:
        """Return it as it is sent."""
        added = [[key.hex(), held.parent.hex(), held.namespace.hex()] for key, held in self.added.items()]
        return {"epoch": epoch, "added": added, "removed": [key.hex() for key in self.removed]}


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
        """Tell the server what has changed, and hear what is over.

        Where servers take turns each knows nothing of what was told to another: the rest waits then.
        """
        num_beginnings, is_more = 0, True
        while is_more and num_beginnings < _MOST_BEGINNINGS:
            epoch = self._epoch
            is_more = self._exchange_some()
            num_beginnings += self._epoch != epoch
        if self._over:
            self.on_over()

    def stop(self) -> None:
        """Tell nothing any more."""
        if self._regularly is not None:
            self._regularly.stop()

    def _exchange_some(self) -> bool:
        """Do so for some; says whether there is more to tell."""
        changes = self._changes()
        answer = self._exchange(changes.told(self._epoch))
        if answer is None:
            return False
        with self._lock:
            if answer["epoch"] != self._epoch:
                self._begin_anew(answer["epoch"])
                return bool(self._held)
            self._note_told(changes)
            self._hear(answer, changes.quarantined)
        return _MOST_AT_ONCE in {len(changes.added), len(changes.removed)}

    def _changes(self) -> _Changes:
        with self._lock:
            removed = dict.fromkeys(islice(self._removed, _MOST_AT_ONCE))
            # What has gone and is back is to be told as gone first.
            ready = (key for key in self._untold if key not in self._removed or key in removed)
            added = {key: self._held[key] for key in islice(ready, _MOST_AT_ONCE)}
            return _Changes(added, list(removed), set(self._quarantined))

    def _begin_anew(self, epoch: object) -> None:
        self._epoch = epoch
        self._told.clear()
        self._removed.clear()
        self._untold = dict.fromkeys(self._held)

    def _note_told(self, changes: _Changes) -> None:
        for key in changes.removed:
            self._removed.pop(key, None)
        for key, held in changes.added.items():
            if self._held.get(key) is held:
                self._untold.pop(key, None)
                self._told.add(key)
            else:
                self._removed[key] = None

    def _hear(self, answer: dict[str, Any], known_before: set[bytes]) -> None:
        self._over = {key for key in map(bytes.fromhex, answer["over"]) if key in self._told}
        kept_out = dict.fromkeys(map(bytes.fromhex, answer["quarantined"]))
        fresh = {key: None for key in self._quarantined if key not in known_before}
        self._quarantined = kept_out | fresh


def _nothing() -> None:
    """Nobody watches."""
