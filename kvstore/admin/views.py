"""What administration tells of blocks, namespaces and prefixes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from kvstore.namespace import Namespace

T = TypeVar("T")


class BlockView(NamedTuple):
    """One block at one moment. Times are epoch milliseconds; what is told by tier goes by the tier's name.

    ``tiers`` have it, from the fastest; ``unreadable`` have it in a form that cannot be read here. ``nbytes``
    are those it occupies in each tier that stores bytes. ``tenant`` is ``None`` for a namespace whose
    manifest is not known. ``used_ms`` is the last use, as far as it is known: its storing or finding, or a
    hit. ``ends_ms`` says when it ends if nobody uses it, ``hard_ms`` the earliest hard end; ``None``: never.
    ``num_hits`` and ``hit_ms`` (0: never) count lookups since this process knows the block.
    """

    key: bytes
    parent: bytes
    namespace: bytes
    tenant: str | None
    raw_bytes: int
    block_tokens: int
    first_token: int | None
    tiers: tuple[str, ...]
    unreadable: tuple[str, ...]
    nbytes: Mapping[str, int]
    created_ms: int
    used_ms: int
    ends_ms: Mapping[str, int | None]
    hard_ms: int | None
    pinned_until_ms: Mapping[str, int]
    num_holds: int
    num_hits: int
    hit_ms: int
    is_quarantined: bool = False


@dataclass(frozen=True, slots=True)
class NamespaceView:
    """What is there of one namespace; ``namespace`` and ``tenant`` are ``None`` where nobody knows them.

    Blocks and bytes by tier are all that lie there, also those that have ended and are not removed yet: over
    all namespaces they add up to what the tier holds. Bytes of the engine's own pool are not told. Times are
    epoch milliseconds, of its blocks that are there; ``hit_ms`` is 0 where none was hit.
    """

    digest: bytes
    namespace: Namespace | None
    tenant: str | None
    num_blocks: Mapping[str, int]
    nbytes: Mapping[str, int]
    used_ms: int
    hit_ms: int
    num_hits: int


@dataclass(frozen=True, slots=True)
class PrefixView:
    """A prompt's beginning: the block of ``key`` and all before it that are there.

    ``num_blocks``, ``num_tokens`` and ``nbytes`` (raw, each block once) are of all of them, ``tiers`` says
    how many of them each tier has. ``num_hits`` and ``hit_ms`` are of the last block: how often all of it
    was found.
    """

    key: bytes
    namespace: bytes
    tenant: str | None
    num_blocks: int
    num_tokens: int
    nbytes: int
    num_hits: int
    hit_ms: int
    used_ms: int
    tiers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of a list in a stable order. ``next`` is where the next page goes on (``after``), if there is one.

    ``total`` is how many there are on all pages, now.
    """

    blocks: tuple[T, ...]
    next: bytes | None
    total: int
