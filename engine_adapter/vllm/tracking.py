"""A request as the scheduler's side knows it: its keys, and which of its blocks are stored already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from engine_adapter.vllm.orders import Scope
from kvstore.interface import Asked
from kvstore.keys import chain_keys
from kvstore.leases import Hit
from kvstore.namespace import Namespace

_PLAIN = Scope()


class Tracked:
    """One request of vLLM. Keys are made as its tokens become known; one list for each rank."""

    def __init__(self, request: Any, namespaces: Sequence[Namespace], scope: Scope = _PLAIN) -> None:
        self.request = request
        self.scope = scope
        self.namespaces = tuple(namespaces)
        self.keys: list[list[bytes]] = [[] for _ in namespaces]
        self.num_offered = 0
        """Leading blocks that were stored, or need not be."""
        self.present: set[int] = set()
        """Blocks that the store had when they were looked up."""
        self.bypasses = False
        """Whether the next admission loads nothing, for a load has failed."""
        self.is_compared = False
        self.hits: list[Hit] = []
        self.asked: list[Asked] | None = None
        """Questions to shared media; ``None``: not asked yet."""
        self.asked_until_s = 0.0

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        return self.namespaces[0].block_tokens

    def make_keys(self) -> None:
        """Make the keys of all whole blocks whose tokens are known."""
        step = self.block_tokens
        num_known = len(self.keys[0])
        if self.request.num_tokens // step <= num_known:
            return
        tokens = self.request.all_token_ids[num_known * step :]
        for namespace, keys in zip(self.namespaces, self.keys, strict=True):
            keys.extend(chain_keys(namespace.digest, tokens, step, keys[-1] if keys else b""))

    def keys_between(self, start: int, end: int) -> tuple[tuple[bytes, ...], ...]:
        """Return the keys of blocks ``start`` to ``end``, by rank."""
        return tuple(tuple(keys[start:end]) for keys in self.keys)

    def parents_of(self, index: int) -> tuple[bytes, ...]:
        """Return the keys of the block before block ``index``, by rank."""
        return tuple(keys[index - 1] if index else b"" for keys in self.keys)

    def runs_to_store(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield ``(start, stop)`` of each run of blocks between these that is to be stored, or compared."""
        start = first
        for index in range(first, end):
            if index in self.present and not self.is_compared:
                if start < index:
                    yield start, index
                start = index + 1
        if start < end:
            yield start, end

    def loaded(self, *, is_failed: bool) -> None:
        """Note that a load is over. After one that failed nothing is loaded once, and all is offered anew."""
        self.bypasses = is_failed
        if is_failed:
            self.present.clear()
        self.release()

    def release(self) -> None:
        """Give back the leases that are held for this request; idempotent."""
        for hit in self.hits:
            hit.release()
        self.hits = []
