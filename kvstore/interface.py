"""What a store can do for whoever keeps blocks in it, wherever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from kvstore.absences import Absence
from kvstore.leases import Hit
from kvstore.loading import OnDone, Ticket
from kvstore.namespace import Namespace
from kvstore.statistics import Health, StoreStatistics
from kvstore.upkeep import Pinned, Pinning


class HeldMemory(Protocol):
    """Memory for one block, the caller's until ``commit`` or ``abort``; exactly one must follow."""

    view: memoryview

    def commit(self) -> None:
        """Make the block visible, all its bytes being in ``view``."""
        ...

    def abort(self) -> None:
        """Give the memory back; nothing was stored."""
        ...


class Asked(Protocol):
    """A question to shared media, on its way."""

    def done(self) -> bool:
        """Say whether all have answered, well or not."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Block until ``done()``, at most ``timeout_s``; returns ``done()``."""
        ...

    def abandon(self) -> None:
        """Give it up; never blocks."""
        ...


class BlockStore(Protocol):
    """A store in this process (``TieredStore``) or in another (``RemoteStore``), with the same meaning."""

    @property
    def tier_names(self) -> tuple[str, ...]: ...

    def now_s(self) -> float: ...

    def own_namespace(self, namespace: Namespace) -> Namespace: ...

    def register_namespace(self, namespace: Namespace) -> None: ...

    def lookup(
        self, keys: Sequence[bytes], lease_s: float | None = None, ttl_s: float | None = None
    ) -> Hit: ...

    def peek(self, keys: Sequence[bytes]) -> tuple[str | None, ...]: ...

    def why_absent(self, key: bytes) -> Absence: ...

    def inquire(
        self,
        keys: Sequence[bytes],
        deadline_s: float,
        on_done: OnDone | None = None,
        block_bytes: int | None = None,
    ) -> Asked | None: ...

    def load(self, hit: Hit, index: int, deadline_s: float, on_done: OnDone | None = None) -> Ticket: ...

    def reserve(
        self, namespace: Namespace, key: bytes, parent: bytes, nbytes: int, *, num_tokens: int | None = None,
        first_token: int | None = None, ttl_s: float | None = None,
    ) -> HeldMemory | None: ...  # fmt: skip

    def put(
        self,
        namespace: Namespace,
        key: bytes,
        parent: bytes,
        payload: memoryview,
        *,
        first_token: int | None = None,
        ttl_s: float | None = None,
    ) -> bool: ...

    def get_into(self, key: bytes, out: memoryview, timeout_s: float = 10.0) -> bool: ...

    def device_added(self, key: bytes, parent: bytes, namespace: Namespace | None = None) -> None: ...

    def device_removed(self, key: bytes) -> None: ...

    def ended(self, keys: Sequence[bytes]) -> list[bytes]: ...

    def over_on_device(self) -> list[bytes]: ...

    def watch_device(self, on_over: Callable[[], None]) -> None: ...

    def known_namespaces(self, timeout_s: float = 5.0) -> list[Namespace]: ...

    def evict(self, keys: Iterable[bytes]) -> int: ...

    def clear(self, tier: str | None = None) -> int: ...

    def quarantine(self, key: bytes) -> None: ...

    def pin(
        self,
        keys: Sequence[bytes],
        *,
        for_s: float | None = None,
        until_s: float | None = None,
        tiers: Sequence[str] | None = None,
    ) -> Pinned: ...

    def unpin(self, keys: Sequence[bytes], tiers: Sequence[str] | None = None) -> int: ...

    def pins(self, limit: int = 1000) -> list[Pinning]: ...

    def flush(self, timeout_s: float) -> bool: ...

    def health(self) -> Health: ...

    def statistics(self) -> StoreStatistics: ...

    def close(self, deadline_s: float = 10.0) -> None: ...
