"""One client's own pool as its session hears of it; see ``OwnPool``, which tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from threading import Lock
from typing import Any

from kvstore.errors import RequestError
from kvstore.namespace import Namespace
from kvstore.store import TieredStore

MOST_AT_ONCE = 8192


class ToldPool:
    """Notes in the store what a client's pool holds, until ``close``. Thread-safe.

    ``own`` replaces the keys of others' blocks.
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
                for key in removed:
                    self._pool.remove(key)
                keys = self._own([key for key, _, _ in added])
                for (key, parent, digest), own in zip(added, keys, strict=True):
                    namespace = self._namespaces.get(digest)
                    if namespace is not None and own == key:
                        self._pool.add(key, parent, namespace)
            over, kept_out = self._pool.over(), self._pool.kept_out()
        return {
            "epoch": self._epoch,
            "over": [key.hex() for key in over],
            "quarantined": [key.hex() for key in kept_out],
        }

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
        blocks = [(bytes.fromhex(key), bytes.fromhex(up), bytes.fromhex(space)) for key, up, space in added]
        return blocks, [bytes.fromhex(key) for key in removed]
    except (TypeError, ValueError) as error:
        raise RequestError("added", "a block is its key, its parent and its namespace") from error
