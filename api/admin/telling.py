"""From what the store tells of itself to what is sent: digests as text, times as seconds of the epoch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from api.admin.fields import seconds, tenant_name
from api.admin.views import BlockView, Held, NamespaceView, PrefixView, ResolvedBlock
from kvstore.admin import views as told


def block_view(block: told.BlockView) -> BlockView:
    """Return what is told of a block."""
    return BlockView(
        key=block.key.hex(),
        parent=block.parent.hex() or None,
        namespace=block.namespace.hex(),
        tenant=_tenant(block.tenant),
        bytes=block.raw_bytes,
        block_tokens=block.block_tokens,
        first_token=block.first_token,
        tiers=list(block.tiers),
        unreadable=list(block.unreadable),
        stored_bytes=dict(block.nbytes),
        created_at=seconds(block.created_ms),
        last_used_at=seconds(block.used_ms),
        ends_at={tier: seconds(end) for tier, end in block.ends_ms.items()},
        hard_ends_at=seconds(block.hard_ms),
        pinned_until={tier: until_ms / 1000 for tier, until_ms in block.pinned_until_ms.items()},
        num_holds=block.num_holds,
        num_hits=block.num_hits,
        last_hit_at=seconds(block.hit_ms),
        is_quarantined=block.is_quarantined,
    )


def resolved_block(index: int, key: bytes, block: told.BlockView | None) -> ResolvedBlock:
    """Return where a block is that was named; ``None``: nowhere, or another tenant's."""
    return ResolvedBlock(
        index=index,
        key=key.hex(),
        first_token=block.first_token if block else None,
        tiers=list(block.tiers) if block else [],
        bytes=block.raw_bytes if block else None,
        pinned=bool(block and block.pinned_until_ms),
    )


def prefix_view(prefix: told.PrefixView) -> PrefixView:
    """Return what is told of a prefix."""
    return PrefixView(
        key=prefix.key.hex(),
        namespace=prefix.namespace.hex(),
        tenant=_tenant(prefix.tenant),
        blocks=prefix.num_blocks,
        tokens=prefix.num_tokens,
        bytes=prefix.nbytes,
        num_hits=prefix.num_hits,
        last_hit_at=seconds(prefix.hit_ms),
        last_used_at=seconds(prefix.used_ms),
        tiers=dict(prefix.tiers),
    )


def namespace_view(space: told.NamespaceView, budget: Mapping[str, int]) -> NamespaceView:
    """Return what is told of a namespace, with the bytes that it may have."""
    known = space.namespace
    return NamespaceView(
        digest=space.digest.hex(),
        tenant=_tenant(space.tenant),
        label=known.label if known else None,
        manifest=_known_manifest(known.manifest()) if known else None,
        tiers={
            tier: Held(blocks=num, bytes=space.nbytes.get(tier, 0)) for tier, num in space.num_blocks.items()
        },
        budget=dict(budget),
        num_hits=space.num_hits,
        last_used_at=seconds(space.used_ms),
        last_hit_at=seconds(space.hit_ms),
    )


def _tenant(tenant: str | None) -> str | None:
    return None if tenant is None else tenant_name(tenant)


def _known_manifest(manifest: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(manifest)
    return facts
