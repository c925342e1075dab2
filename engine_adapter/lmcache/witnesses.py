"""Mode verify: chunks that are here but not given, until the engine has computed and stored them again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import Enum
from threading import Lock

from engine_adapter.lmcache.identity import Layout
from kvstore.interface import BlockStore

_MOST_AWAITED = 4096

Compare = Callable[[Layout, memoryview, memoryview], bool | None]
"""Says whether two chunks are the same but for rounding; ``None``: chunks of this layout cannot be told."""


class Verdict(Enum):
    """How a comparison ended."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_COMPARED = "not compared"


class Witnesses:
    """Chooses the lookups to verify, and compares. Wrong chunks are kept out of the store. Thread-safe."""

    def __init__(self, store: BlockStore, share: float, load_deadline_s: float, compare: Compare) -> None:
        self._store = store
        self._share = share
        self._load_deadline_s = load_deadline_s
        self._is_close = compare
        self._owed = 0.0
        self._awaited: OrderedDict[bytes, None] = OrderedDict()
        self._lock = Lock()

    def selects(self) -> bool:
        """Say whether the next lookup is to be verified: every so many, as the share says."""
        with self._lock:
            self._owed += self._share
            is_selected = self._owed >= 1
            self._owed -= is_selected
            return is_selected

    def await_all(self, keys: Iterable[bytes]) -> None:
        """Expect these chunks to be stored again; of too many the oldest are forgotten."""
        with self._lock:
            self._awaited.update(dict.fromkeys(keys))
            while len(self._awaited) > _MOST_AWAITED:
                self._awaited.popitem(last=False)

    def compare(self, key: bytes, layout: Layout, computed: memoryview) -> Verdict:
        """Compare a chunk that was stored again with the one that is here, if it was awaited."""
        with self._lock:
            is_awaited = key in self._awaited
            self._awaited.pop(key, None)
        if not is_awaited:
            return Verdict.NOT_COMPARED
        stored = memoryview(bytearray(len(computed)))
        if not self._store.get_into(key, stored, self._load_deadline_s):
            return Verdict.NOT_COMPARED
        is_right = self._is_close(layout, computed, stored)
        if is_right is None:
            return Verdict.NOT_COMPARED
        if not is_right:
            self._store.quarantine(key)
        return Verdict.RIGHT if is_right else Verdict.WRONG
