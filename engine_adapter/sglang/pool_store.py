"""The pages of one host pool in the store: found, loaded, stored, compared."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from engine_adapter.asking import ask_media
from engine_adapter.engine.request import Mode
from engine_adapter.sglang.comparing import is_close
from engine_adapter.sglang.counts import Counts
from engine_adapter.sglang.identity import scoped
from engine_adapter.sglang.loads import load_each
from engine_adapter.sglang.memory import Pieces, gather, num_bytes, scatter
from engine_adapter.sglang.opening import most_on_way
from engine_adapter.sglang.pool_hits import leading
from engine_adapter.sglang.settings import AdapterSettings
from engine_adapter.witnesses import Witnesses
from engine_adapter.write_pace import WritePace
from kvstore.absences import Cause
from kvstore.interface import BlockStore
from kvstore.loading import LoadedBlock
from kvstore.namespace import Namespace

_ROOM_S = 5.0
_IN_VAIN = {Cause.QUARANTINED, Cause.PAUSED}


class Kind(NamedTuple):
    """What all pages of a pool have in common. ``dtype`` is ``None`` where they cannot be compared."""

    namespace: Namespace
    page_bytes: int
    dtype: Any = None


class PoolStore:
    """Keeps pages of one kind; keys are SGLang's. Errors are the caller's to catch. Thread-safe."""

    def __init__(self, store: BlockStore, kind: Kind, settings: AdapterSettings, counts: Counts) -> None:
        self._store = store
        self._kind = kind
        self._settings = settings
        self._counts = counts
        self._mode = Mode(settings.mode)
        share = settings.verify_share if self._mode is Mode.VERIFY and kind.dtype is not None else 0.0
        self._witnesses = Witnesses(share)
        self._pace = WritePace(store)

    def present(self, keys: Sequence[str]) -> list[bool]:
        """Say which pages may be loaded; may wait for media that have to be asked."""
        if self._mode is Mode.OFF or not keys:
            return [False] * len(keys)
        ours = self._scoped(keys)
        ask_media(self._store, ours, self._settings.lookup_deadline_s, self._kind.page_bytes)
        hit = self._store.lookup(ours, ttl_s=self._settings.ttl_s)
        is_here = [tier is not None for tier in hit.tiers]
        hit.release()
        num_found = leading(is_here)
        self._counts.count("pages_looked_up", len(keys))
        self._counts.count("pages_found", num_found)
        if self._mode is Mode.OBSERVE or (num_found and self._witnesses.summon(ours[:num_found])):
            return [False] * len(keys)
        return is_here

    def load(self, keys: Sequence[str], targets: Sequence[Pieces]) -> list[bool]:
        """Load pages into memory of SGLang's, verified; what cannot be loaded leaves its memory as it was."""
        if self._mode in {Mode.OFF, Mode.OBSERVE}:
            return [False] * len(keys)
        began_s, ours = time.monotonic(), self._scoped(keys)
        are_loaded = [False] * len(ours)

        def land(index: int, block: LoadedBlock) -> None:
            if len(block.data) == num_bytes(targets[index]):
                scatter(block.data, targets[index])
                are_loaded[index] = True

        deadline_s, ttl_s = self._settings.load_deadline_s, self._settings.ttl_s
        load_each(self._store, ours, land, deadline_s, ttl_s, most_on_way(self._kind.page_bytes))
        num_loaded = sum(are_loaded)
        self._counts.count("pages_loaded", num_loaded)
        self._counts.count("pages_not_loaded", len(ours) - num_loaded)
        took_s = time.monotonic() - began_s
        self._counts.moved("loaded", num_loaded, num_loaded * self._kind.page_bytes, took_s)
        return are_loaded

    def put(self, keys: Sequence[str], sources: Sequence[Pieces], before: Sequence[str] = ()) -> list[bool]:
        """Store copies of pages; ``before`` are those of the prompt that stand before them, if known.

        What is there already, or on its way, counts as stored. In mode off nothing is stored and all counts.
        Waits a few seconds at most where much is on its way.
        """
        if self._mode is Mode.OFF:
            return [True] * len(keys)
        began_s, ours = time.monotonic(), self._scoped(keys)
        parents = [*self._scoped(before[-1:]), *ours] if before else [b"", *ours]
        first = len(before) * self._tokens if before else None
        are_stored, ends_s = [], self._store.now_s() + _ROOM_S
        for index, (key, pieces) in enumerate(zip(ours, sources, strict=True)):
            if self._witnesses.take(key):
                self._compare(key, pieces)
            position = None if first is None else first + index * self._tokens
            are_stored.append(self._put_one(key, parents[index], pieces, position, ends_s))
        num_stored = sum(are_stored)
        self._counts.count("pages_stored", num_stored)
        self._counts.count("pages_refused", len(ours) - num_stored)
        took_s = time.monotonic() - began_s
        self._counts.moved("stored", num_stored, num_stored * self._kind.page_bytes, took_s)
        return are_stored

    @property
    def _tokens(self) -> int:
        return self._kind.namespace.block_tokens

    def _scoped(self, keys: Sequence[str]) -> list[bytes]:
        """Return the store's keys; a server may keep our namespace in one of its tenant's."""
        return scoped(self._store.own_namespace(self._kind.namespace), keys)

    def _put_one(
        self, key: bytes, parent: bytes, pieces: Pieces, position: int | None, ends_s: float
    ) -> bool:
        nbytes = num_bytes(pieces)
        if nbytes != self._kind.page_bytes:
            raise ValueError(f"a page of {nbytes} bytes where all have {self._kind.page_bytes}")
        memory = self._store.reserve(
            self._kind.namespace, key, parent, nbytes, first_token=position, ttl_s=self._settings.ttl_s
        )
        if memory is None:
            return self._is_there(key) or self._put_later(key, parent, pieces, position, ends_s)
        try:
            gather(pieces, memory.view)
        except BaseException:
            memory.abort()
            raise
        memory.commit()
        self._pace.keep()
        return True

    def _is_there(self, key: bytes) -> bool:
        return self._store.why_absent(key).cause is Cause.PRESENT

    def _put_later(
        self, key: bytes, parent: bytes, pieces: Pieces, position: int | None, ends_s: float
    ) -> bool:
        """Offer a page again where waiting helps: much is written, or sent to a server, at the moment."""
        if self._store.why_absent(key).cause in _IN_VAIN or not self._has_room_by(ends_s):
            return False
        page = memoryview(bytearray(self._kind.page_bytes))
        gather(pieces, page)
        return self._store.put(
            self._kind.namespace, key, parent, page, first_token=position, ttl_s=self._settings.ttl_s
        )

    def _has_room_by(self, ends_s: float) -> bool:
        """Wait for what is being written; a server's own calls wait for what is sent."""
        left_s = ends_s - self._store.now_s()
        return bool(self._settings.store) or (left_s > 0 and self._store.flush(left_s))

    def _compare(self, key: bytes, pieces: Pieces) -> None:
        """Compare what was computed again with what is stored; keep out what differs."""

        def judge(_index: int, block: LoadedBlock) -> None:
            is_right = is_close(pieces, block.data, self._kind.dtype)
            self._counts.count("pages_compared")
            if not is_right:
                self._counts.count("pages_wrong")
                self._store.quarantine(key)

        load_each(self._store, [key], judge, self._settings.load_deadline_s, None)
