"""SGLang's host pools, each with its pages in the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

import torch

from engine_adapter.sglang.comparing import can_compare
from engine_adapter.sglang.counts import Counts
from engine_adapter.sglang.identity import KV, pool_namespace, rank_name
from engine_adapter.sglang.memory import Pieces, at_address, of_tensor
from engine_adapter.sglang.opening import on_way_bytes, open_store, staging_bytes
from engine_adapter.sglang.pool_store import Kind, PoolStore
from engine_adapter.sglang.served import Served
from engine_adapter.sglang.settings import AdapterSettings
from kvstore.errors import ConfigError
from kvstore.interface import BlockStore


class Order(Enum):
    """In which order a page's pieces are stored; in some layouts the two differ."""

    BY_ADDRESS = "by address"
    """As SGLang lists their addresses, for the calls without a copy."""
    FLAT = "flat"
    """As SGLang copies them into one tensor."""


class HostPools:
    """The pools of one process by name, and the store that keeps their pages.

    ``config`` is SGLang's ``HiCacheStorageConfig``; ``order`` is that of the pool of keys and values, others
    are always flat. Pages are found once ``begin`` was called.
    """

    def __init__(
        self,
        config: Any,
        settings: AdapterSettings,
        order: Order,
        counts: Counts,
        served: Callable[[], Served],
    ) -> None:
        self._config = config
        self._settings = settings
        self._order = order
        self._counts = counts
        self._served = served
        self._identity: tuple[Served, str] | None = None
        self._store: BlockStore | None = None
        self._staging_bytes = 0
        self._awaiting: list[_Awaiting] = []
        self._pools: dict[str, tuple[Any, PoolStore]] = {}

    def open(self, pool: Any) -> None:
        """Take in the pool of keys and values. Raises ``ConfigError`` if pages cannot be copied, or told."""
        page_bytes = _page_bytes(pool, self._order)
        served = self._served()
        self._identity = served, served.weights(self._settings)
        self._awaiting.append(_Awaiting(KV, pool, page_bytes, self._order))

    def add(self, name: str, pool: Any) -> None:
        """Take in another pool. Raises ``ConfigError`` if pages cannot be copied, or are too long."""
        if name == KV:
            return
        added = _Awaiting(name, pool, _page_bytes(pool, Order.FLAT), Order.FLAT)
        if self._store is None:
            self._awaiting.append(added)
        else:
            self._keep(added)

    def begin(self) -> None:
        """Open the store for the pools that were taken in. Raises ``ConfigError`` or ``AccessError``."""
        if self._identity is None:
            raise ConfigError("pool", "there is none of keys and values")
        name = rank_name(self._config, self._identity[0].replica)
        page_bytes = [each.page_bytes for each in self._awaiting]
        self._staging_bytes = staging_bytes(page_bytes)
        self._store = open_store(self._settings, name, page_bytes)
        while self._awaiting:
            self._keep(self._awaiting.pop(0))

    def require(self, order: Order) -> None:
        """Raise ``ConfigError`` where pages of keys and values are stored in another order."""
        if order is not self._order:
            raise ConfigError("interface_v1", f"pages are stored {self._order.value} here")

    @property
    def kv(self) -> PoolStore:
        """The pages of keys and values. Raises ``LookupError`` before ``open`` and after ``close``."""
        return self._pools[KV][1]

    def at(self, indices: torch.Tensor, num_pages: int) -> list[Pieces]:
        """Return the memory of pages of keys and values, whose tokens lie at ``indices``."""
        self.require(Order.BY_ADDRESS)
        return _pieces(self._pools[KV][0], indices, num_pages)

    def present(self, name: str, keys: Sequence[str]) -> list[bool]:
        """Say which pages of another pool may be loaded: none of one that is not known."""
        return self._pools[name][1].present(keys) if name in self._pools else [False] * len(keys)

    def load(self, name: str, keys: Sequence[str], indices: torch.Tensor | None) -> list[bool]:
        """Load pages of another pool."""
        pool, pages = self._pools[name]
        places = _first_tokens(pool, indices, len(keys))
        landed = [pool.get_dummy_flat_data_page() for _ in keys]
        are_loaded = pages.load(keys, [[of_tensor(page)] for page in landed])
        for place, page, is_loaded in zip(places, landed, are_loaded, strict=True):
            if is_loaded:
                pool.set_from_flat_data_page(place, page)
        return are_loaded

    def put(self, name: str, keys: Sequence[str], indices: torch.Tensor | None) -> list[bool]:
        """Store pages of another pool."""
        pool, pages = self._pools[name]
        places = _first_tokens(pool, indices, len(keys))
        taken = [pool.get_data_page(place, flat=True).contiguous() for place in places]
        return pages.put(keys, [[of_tensor(page)] for page in taken])

    def clear(self) -> None:
        """Remove all that is in the store and not in use."""
        if self._store is not None:
            self._store.clear()

    def close(self, deadline_s: float) -> None:
        """Close the store; nothing is found any more. Idempotent."""
        store, self._store = self._store, None
        self._pools.clear()
        if store is not None:
            store.close(deadline_s)

    def _keep(self, new: _Awaiting) -> None:
        if self._identity is None or self._store is None:
            raise ConfigError("pool", f"{new.name} came before that of keys and values")
        if on_way_bytes(new.page_bytes) > self._staging_bytes:
            raise ConfigError("pool", f"there is no memory for pages of {new.name}, which came late")
        (served, weights), salt = self._identity, self._settings.salt
        namespace = pool_namespace(
            self._config, new.pool, new.name, new.order.value, new.page_bytes, served, weights, salt
        )
        dtype = getattr(new.pool, "dtype", None)
        kind = Kind(namespace, new.page_bytes, dtype if new.name == KV and can_compare(dtype) else None)
        self._pools[new.name] = new.pool, PoolStore(self._store, kind, self._settings, self._counts)


class _Awaiting(NamedTuple):
    """A pool for which there is no store yet."""

    name: str
    pool: Any
    page_bytes: int
    order: Order


def _page_bytes(pool: Any, order: Order) -> int:
    """Return the bytes of a page; raises ``ConfigError`` where SGLang does not say how it lies."""
    try:
        if order is Order.FLAT:
            return len(of_tensor(pool.get_dummy_flat_data_page()))
        addresses, sizes = pool.get_page_buffer_meta(torch.arange(pool.page_size))
        return sum(_sizes(addresses, sizes))
    except Exception as error:
        other = "with" if order is Order.FLAT else "without"
        raise ConfigError(
            "interface_v1", f"pages of {type(pool).__name__} cannot be copied so, try {other} it: {error}"
        ) from error


def _pieces(pool: Any, indices: torch.Tensor, num_pages: int) -> list[Pieces]:
    addresses, sizes = pool.get_page_buffer_meta(indices)
    num_each, num_over = divmod(len(addresses), max(1, num_pages))
    if num_over or len(indices) != num_pages * pool.page_size:
        raise ValueError(f"{len(indices)} places for {num_pages} pages of {pool.page_size} tokens")
    pieces = list(map(at_address, addresses, _sizes(addresses, sizes)))
    return [pieces[start : start + num_each] for start in range(0, len(pieces), num_each)]


def _sizes(addresses: Sequence[int], sizes: Sequence[int] | int) -> Sequence[int]:
    return [sizes] * len(addresses) if isinstance(sizes, int) else sizes


def _first_tokens(pool: Any, indices: torch.Tensor | None, num_pages: int) -> list[int]:
    page_tokens = int(getattr(pool, "page_size", 1) or 1)
    num_places = 0 if indices is None else indices.numel()
    if indices is None or num_places != num_pages * page_tokens:
        raise ValueError(f"{num_places} places for {num_pages} pages of {page_tokens} tokens")
    return [int(place) for place in indices.tolist()[::page_tokens]]
