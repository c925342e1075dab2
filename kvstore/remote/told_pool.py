"""One client's own pool as its session hears of it; see ``OwnPool``, which tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from threading import Lock
from typing import Any

from kvstore.errors import RequestError
from kvstore.keys import KEY_BYTES
from kvstore.namespace import Namespace
from kvstore.store import TieredStore

MOST_AT_ONCE = 8192


class ToldPool:
    """Notes in the store what a client's pool holds, until ``close``. Thread-safe.

    ``own`` returns the keys in the store for those that the client says.
    """

    def __init__(
        self,
        store: TieredStore,
        namespaces: Mapping[bytes, Namespace],
        own: Callable[[Sequence[bytes]], list[bytes]],
    ) -> None:
        self._pool = store.pools.open()
        self._namespaces = namespaces
        self._own = own
        self._said: dict[bytes, bytes] = {}
        self._epoch = token_hex(8)
        self._lock = Lock()
        self._is_closed = False

    def exchange(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Take in what has changed, and return what the pool must let go of.

        Whoever speaks of another epoch is told this one, to begin from nothing. Raises ``RequestError``.
        """
        added, removed = _changes(said)
        with self._lock:
            if said.get("epoch") == self._epoch and not self._is_closed:
                self._remove(removed)
                self._add(added)
            over, kept_out = self._pool.over(), self._pool.kept_out()
            return {
                "epoch": self._epoch,
                "over": [self._said[key].hex() for key in over],
                "quarantined": [self._said[key].hex() for key in kept_out],
            }

    def _remove(self, removed: Sequence[bytes]) -> None:
        for key in self._own(removed):
            self._pool.remove(key)
            self._said.pop(key, None)

    def _add(self, added: Sequence[tuple[bytes, bytes, bytes]]) -> None:
        keys, parents = (self._own([names[place] for names in added]) for place in (0, 1))
        for key, parent, (said, _, digest) in zip(keys, parents, added, strict=True):
            namespace = self._namespaces.get(digest)
            if namespace is not None and self._pool.add(key, parent, namespace):
                self._said[key] = said

    def close(self) -> None:
        """Note that the pool is gone."""
        with self._lock:
            self._is_closed = True
            self._pool.close()


def _changes(said: Mapping[str, Any]) -> tuple[list[tuple[bytes, bytes, bytes]], list[bytes]]:
    added, removed = said.get("added", []), said.get("removed", [])
    try:
        if len(added) > MOST_AT_ONCE or len(removed) > MOST_AT_ONCE:
            raise RequestError("added", f"tell of at most {MOST_AT_ONCE} blocks at once")
        blocks = [(_key(key), _key(up) if up else b"", _key(space)) for key, up, space in added]
        return blocks, [_key(key) for key in removed]
    except (TypeError, ValueError) as error:
        raise RequestError("added", "a block is its key, its parent and its namespace") from error


def _key(said: str) -> bytes:
    key = bytes.fromhex(said)
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes")
    return key
