"""What the administration tells of blocks, prefixes, namespaces and tiers."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from api.admin.fields import Listed, list_of
from api.examples import AT, DIGEST, example, example_of

_TIER = {"name": "host", "blocks": 1024, "bytes": 1 << 30, "budget_bytes": 2 << 30}


class TierView(BaseModel):
    """A tier, with what the caller has in it; an operator sees what all have.

    ``state`` is ``ok``, ``degraded`` or ``unhealthy``, and ``reason`` says why.
    """

    model_config = example(
        **_TIER, pinned_bytes=1 << 20, state="ok", reason="", is_draining=False, policy="LeafFirstLRU"
    )

    name: str
    blocks: int
    bytes: int
    budget_bytes: int
    pinned_bytes: int
    state: str
    reason: str
    is_draining: bool
    policy: str | None


class TierList(Listed[TierView]):
    """Tiers from the fastest."""

    model_config = list_of(TierView)


class Overview(BaseModel):
    """The whole in a few numbers. ``mode`` is ``null`` where no model is served."""

    model_config = example(
        tiers=[example_of(TierView)],
        namespaces=3, clients=2, mode="serve", uptime_s=3600.5, version="0.1.0", has_model=True,
    )  # fmt: skip

    tiers: list[TierView]
    namespaces: int
    clients: int
    mode: str | None
    uptime_s: float
    version: str
    has_model: bool


class BlockView(BaseModel):
    """One block. Times are seconds of the epoch.

    ``tenant`` is its tenant's digest, ``unsalted`` without a salt, ``null`` where it is not known.
    ``ends_at`` says by tier when it ends unless it is used, ``hard_ends_at`` when in any case: maybe never.
    ``unreadable`` tiers have it in a form of another version. Hits are counted since this process knows it.
    """

    model_config = example(
        key=DIGEST, parent=None, namespace=DIGEST, tenant=DIGEST, bytes=1 << 20,
        block_tokens=16, first_token=0, tiers=["host", "disk"], unreadable=[],
        stored_bytes={"host": 1 << 20, "disk": 1052672},
        created_at=AT, last_used_at=AT, ends_at={"host": AT, "disk": None}, hard_ends_at=None,
        pinned_until={"disk": AT}, num_holds=0, num_hits=7, last_hit_at=AT, is_quarantined=False,
    )  # fmt: skip

    key: str
    parent: str | None
    namespace: str
    tenant: str | None
    bytes: int
    block_tokens: int
    first_token: int | None
    tiers: list[str]
    unreadable: list[str]
    stored_bytes: dict[str, int]
    created_at: float | None
    last_used_at: float | None
    ends_at: dict[str, float | None]
    hard_ends_at: float | None
    pinned_until: dict[str, float]
    num_holds: int
    num_hits: int
    last_hit_at: float | None
    is_quarantined: bool


class BlockList(Listed[BlockView]):
    """Blocks in the order of their keys."""

    model_config = list_of(BlockView)


class PrefixView(BaseModel):
    """A prefix, named by the key of its last block, with all blocks before it that are there.

    ``tiers`` counts those that each tier has; hits are those of the last block.
    """

    model_config = example(
        key=DIGEST, namespace=DIGEST, tenant=DIGEST, blocks=64, tokens=1024, bytes=64 << 20, num_hits=7,
        last_hit_at=AT, last_used_at=AT, tiers={"host": 64, "disk": 60},
    )  # fmt: skip

    key: str
    namespace: str
    tenant: str | None
    blocks: int
    tokens: int
    bytes: int
    num_hits: int
    last_hit_at: float | None
    last_used_at: float | None
    tiers: dict[str, int]


class PrefixList(Listed[PrefixView]):
    """Prefixes, the first by what was asked for."""

    model_config = list_of(PrefixView)


class Held(BaseModel):
    """So many blocks and bytes."""

    model_config = example(blocks=64, bytes=64 << 20)

    blocks: int
    bytes: int


class NamespaceView(BaseModel):
    """A namespace and what it has. ``manifest`` is ``null`` for one that only its blocks tell of.

    ``budget`` are the bytes it may have, by tier, where a quota says so.
    """

    model_config = example(
        digest=DIGEST, tenant=DIGEST, label="SmolLM2-135M-Instruct", manifest={"block_tokens": 16},
        tiers={"disk": {"blocks": 64, "bytes": 64 << 20}}, budget={"disk": 1 << 30}, num_hits=7,
        last_used_at=AT, last_hit_at=AT,
    )  # fmt: skip

    digest: str
    tenant: str | None
    label: str | None
    manifest: dict[str, Any] | None
    tiers: dict[str, Held]
    budget: dict[str, int]
    num_hits: int
    last_used_at: float | None
    last_hit_at: float | None


class NamespaceList(Listed[NamespaceView]):
    """Namespaces in the order of their digests."""

    model_config = list_of(NamespaceView)


class ResolvedBlock(BaseModel):
    """One of the blocks that were named. ``tiers`` is empty where it is nowhere."""

    model_config = example(index=0, key=DIGEST, first_token=0, tiers=["host"], bytes=1 << 20, pinned=False)

    index: int
    key: str
    first_token: int | None
    tiers: list[str]
    bytes: int | None
    pinned: bool


class Resolved(BaseModel):
    """The blocks of a prompt or chat, in order, and where they are."""

    model_config = example(data=[example_of(ResolvedBlock)], num_tokens=23, block_tokens=16)

    data: list[ResolvedBlock]
    num_tokens: int | None
    block_tokens: int | None
