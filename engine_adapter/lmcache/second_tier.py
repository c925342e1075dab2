"""What LMCache asks of its second tier, done with our store: find and lock, load, keep, unlock, delete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import groupby
from threading import Lock
from typing import Any, NamedTuple

from engine_adapter.asking import ask_media
from engine_adapter.engine.request import Mode
from engine_adapter.lmcache.costs import LoadCosts
from engine_adapter.lmcache.identity import Identity, Layout, Namespaces, Place, place_in
from engine_adapter.lmcache.locks import Locks
from engine_adapter.lmcache.predecessors import Predecessors
from engine_adapter.lmcache.settings import AdapterSettings
from engine_adapter.witnesses import Witnesses
from engine_adapter.write_pace import WritePace
from kvstore.interface import BlockStore
from kvstore.leases import Hit

COUNTS = (
    "chunks_looked_up", "chunks_found", "chunks_loaded", "chunks_not_loaded", "chunks_stored",
    "chunks_compared", "chunks_wrong",
)  # fmt: skip
Compare = Callable[[Layout, memoryview, memoryview], bool | None]
"""Says whether two chunks are the same but for rounding; ``None``: chunks of this layout cannot be told."""

_LEASE_S = 60.0
_FLUSH_S = 5.0


class Chunk(NamedTuple):
    """One of LMCache's objects: its key, how it is laid out, and its memory, format ``B``."""

    key: Any
    layout: Layout
    data: memoryview


class Kept(Enum):
    """What became of a chunk that was to be stored."""

    NEW = "new"
    KNOWN = "known"
    REFUSED = "refused"


class SecondTier:
    """Chunks by LMCache's keys in one store. Thread-safe; methods block on media where they must.

    ``compare`` says whether two chunks are the same but for rounding, for mode verify. The store stays the
    caller's to close.
    """

    def __init__(self, store: BlockStore, settings: AdapterSettings, version: str, compare: Compare) -> None:
        self.counts = Counter(dict.fromkeys(COUNTS, 0))
        self.locks = Locks()
        self.costs = LoadCosts(store.now_s)
        self.chunk_tokens = settings.chunk_tokens
        self.prefill_tokens_per_s = settings.prefill_tokens_per_s
        self._store = store
        self._settings = settings
        self._mode = Mode(settings.mode)
        self._namespaces = Namespaces(Identity(version, settings.chunk_tokens, settings.weights))
        self._witnesses = Witnesses(settings.verify_share)
        self._is_close = compare
        self._predecessors = Predecessors()
        self._pace = WritePace(store)
        self._counting = Lock()

    @property
    def tier_names(self) -> tuple[str, ...]:
        """The store's tiers from the fastest."""
        return self._store.tier_names

    def place(self, key: Any, layout: Layout | None = None) -> Place | None:
        """Return where a chunk is kept; ``None``: its layout is not known."""
        namespace = self._namespaces.of(key, layout)
        return None if namespace is None else place_in(self._store.own_namespace(namespace), key.chunk_hash)

    def find(self, keys: Sequence[Any], layouts: Mapping[int, Layout]) -> list[bool]:
        """Say which chunks are here and lock those; waits for media that must be asked.

        Chunks of one rank and group that stand together are a prefix: after a wrong one none is found.
        """
        self._count("chunks_looked_up", len(keys))
        if self._mode is Mode.OFF:
            return [False] * len(keys)
        placed = [(key, self.place(key, layouts.get(key.object_group_id))) for key in keys]
        known = {key: place.key for key, place in placed if place is not None}
        if known:
            ask_media(self._store, list(known.values()), self._settings.lookup_deadline_s)
        hits = [(row, self._look_up([known[key] for key in row])) for row in _rows(known)]
        found = {
            key: known[key]
            for row, hit in hits
            for key, tier in zip(row, hit.tiers, strict=True)
            if tier is not None
        }
        self._count("chunks_found", len(found))
        is_given = self._is_given(found)
        for row, hit in hits:
            if is_given:
                self.locks.add(hit, row)
            else:
                hit.release()
        return [is_given and key in found for key in keys]

    def load(self, chunk: Chunk) -> bool:
        """Copy a chunk into its memory; ``False``: it is not here, or not in time, or of another length."""
        place = self.place(chunk.key, chunk.layout)
        if place is None or self._mode in {Mode.OFF, Mode.OBSERVE}:
            return False
        # What loading costs is of use only beside what computing costs.
        tier = self.locks.tier_of(chunk.key) if self.prefill_tokens_per_s else None
        asked = None if tier is None else self.costs.ask(tier, len(chunk.data))
        has_arrived = False
        try:
            has_arrived = self._store.get_into(place.key, chunk.data, self._settings.load_deadline_s)
        finally:
            if asked is not None:
                self.costs.end(asked, has_arrived=has_arrived)
        self._count("chunks_loaded" if has_arrived else "chunks_not_loaded")
        return has_arrived

    def keep(self, chunk: Chunk) -> Kept:
        """Store a chunk; waits for what was stored before it where that is much."""
        if self._mode is Mode.OFF:
            return Kept.REFUSED
        place = self.place(chunk.key, chunk.layout)
        if place is None:
            return Kept.REFUSED
        is_new = self._put(place, chunk.data)
        if not is_new and not self._is_here(place) and self._store.flush(_FLUSH_S):
            is_new = self._put(place, chunk.data)
        if is_new:
            self._count("chunks_stored")
            self._pace.keep()
            return Kept.NEW
        if self._witnesses.take(place.key) and not self._is_right(place, chunk):
            return Kept.REFUSED
        return Kept.KNOWN if self._is_here(place) else Kept.REFUSED

    def settle(self, stored: Sequence[Place]) -> list[bool]:
        """Wait until what was stored can be found, as far as it will be; says which can.

        A server is known to have it when it answers a lookup; what does not fit into memory is there when it
        is written.
        """
        if not stored:
            return []
        if self._settings.store:
            self._store.lookup([stored[-1].key]).release()
            return [True] * len(stored)
        here = self.are_here(stored)
        if not all(here) and self._store.flush(_FLUSH_S):
            here = self.are_here(stored)
        return here

    def are_here(self, places: Sequence[Place]) -> list[bool]:
        """Say which chunks are here, without locking them or asking media."""
        return [tier is not None for tier in self._store.peek([place.key for place in places])]

    def delete(self, places: Sequence[Place]) -> None:
        """Remove chunks that are not in use, those being written as well."""
        keys = [place.key for place in places]
        self._store.evict(keys)
        if any(self.are_here(places)) and self._store.flush(_FLUSH_S):
            self._store.evict(keys)

    def _is_given(self, found: Mapping[Any, bytes]) -> bool:
        """Say whether what was found is given; in mode verify every so often it is computed again."""
        if found and self._mode is Mode.VERIFY:
            return not self._witnesses.summon(found.values())
        return self._mode is not Mode.OBSERVE

    def _look_up(self, keys: Sequence[bytes]) -> Hit:
        self._predecessors.learn(keys)
        return self._store.lookup(keys, lease_s=_LEASE_S, ttl_s=self._settings.ttl_s)

    def _put(self, place: Place, data: memoryview) -> bool:
        parent = self._predecessors.of(place.key)
        return self._store.put(place.namespace, place.key, parent, data, ttl_s=self._settings.ttl_s)

    def _is_here(self, place: Place) -> bool:
        return self.are_here([place])[0]

    def _is_right(self, place: Place, chunk: Chunk) -> bool:
        """Compare a chunk that was computed again with the one that is here; a wrong one is kept out."""
        stored = memoryview(bytearray(len(chunk.data)))
        if not self._store.get_into(place.key, stored, self._settings.load_deadline_s):
            return True
        is_right = self._is_close(chunk.layout, chunk.data, stored)
        if is_right is None:
            return True
        self._count("chunks_compared")
        if not is_right:
            self._count("chunks_wrong")
            self._store.quarantine(place.key)
        return is_right

    def _count(self, name: str, amount: int = 1) -> None:
        with self._counting:
            self.counts[name] += amount


def _rows(keys: Iterable[Any]) -> list[list[Any]]:
    """Return keys of one rank and group in a row each, as they stand together."""
    return [
        list(row)
        for _, row in groupby(
            keys, lambda key: (key.model_name, key.kv_rank, key.object_group_id, key.cache_salt)
        )
    ]
