"""From a body's selection to the blocks that it means, of those that its sender may see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from api.admin.context import AdminContext, scope_of
from api.admin.fields import UNSALTED
from api.admin.selection import ByFilter, ByKeys, ByMessages, ByPrompt, FilterFields
from kvstore.admin.selection import BlockFilter
from kvstore.errors import RequestError
from kvstore.remote.tenancy import Tenant

_MOST_TOLD = 8


class Chosen(NamedTuple):
    """The blocks that are meant, what the audit log says of them, and the prompt that they belong to.

    ``keys`` are in the order of a prompt, or of the body; ``compute`` computes and stores a prompt's.
    """

    blocks: BlockFilter
    told: dict[str, Any]
    keys: tuple[bytes, ...] | None = None
    num_tokens: int | None = None
    block_tokens: int | None = None
    compute: Callable[[], None] | None = None


async def chosen_by(
    context: AdminContext, caller: Tenant, selection: ByKeys | ByFilter | ByPrompt | ByMessages
) -> Chosen:
    """Return what a selection means. Raises ``RequestError``, ``NeedsModelError`` or what a prompt raises."""
    if isinstance(selection, ByFilter):
        blocks = block_filter(selection.filter, caller)
        told = selection.filter.model_dump(mode="json", exclude_none=True)
        return Chosen(blocks, {"filter": told})
    if isinstance(selection, ByKeys):
        keys = tuple(bytes.fromhex(key) for key in selection.keys)
        return Chosen(BlockFilter(keys=keys, tenant=scope_of(caller)), _told(keys), keys)
    model = context.need_model("naming blocks by a prompt")
    found = await model.blocks_of(caller, selection)
    keys = tuple(found.keys)
    if not keys:
        raise RequestError("selection", f"is shorter than a block of {found.block_tokens} tokens")
    blocks = BlockFilter(keys=keys, tenant=scope_of(caller))
    return Chosen(blocks, _told(keys), keys, found.num_tokens, found.block_tokens, found.compute)


def block_filter(fields: FilterFields, caller: Tenant) -> BlockFilter:
    """Return the blocks that have all that in common, of those that the caller may see."""
    blocks = BlockFilter(
        tenant="" if fields.tenant == UNSALTED else fields.tenant,
        model=fields.model,
        namespace=_bytes(fields.namespace),
        prefix=_bytes(fields.prefix),
        tier=fields.tier,
        min_age_s=fields.min_age_s,
        max_age_s=fields.max_age_s,
        min_idle_s=fields.min_idle_s,
        max_idle_s=fields.max_idle_s,
        is_pinned=fields.pinned,
    )
    own = scope_of(caller)
    if own is None:
        return blocks
    return replace(blocks, tenant=own, keys=() if fields.tenant not in {None, own} else None)


def _bytes(digest: str | None) -> bytes | None:
    return None if digest is None else bytes.fromhex(digest)


def _told(keys: tuple[bytes, ...]) -> dict[str, Any]:
    return {"keys": [key.hex() for key in keys[:_MOST_TOLD]], "num_keys": len(keys)}
