"""Blocks and prefixes: listed, looked at one by one, and found for a prompt."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from api.admin.choosing import Chosen, block_filter, chosen_by
from api.admin.context import AdminContext, Shared, scope_of
from api.admin.fields import Cursor, Key, Limit, page
from api.admin.requests import SelectionFields
from api.admin.selection import FilterFields
from api.admin.telling import block_view, prefix_view, resolved_block
from api.admin.views import BlockList, BlockView, PrefixList, Resolved
from api.error_schema import errors
from api.tenancy import Caller
from kvstore.errors import AbsentError, RequestError

_MOST_RANKED = 10_000

router = APIRouter(prefix="/admin", tags=["blocks"])


class BlockQuery(FilterFields):
    """Which blocks to list, and which page of them."""

    limit: Limit = 100
    cursor: Key | None = None


@router.get("/blocks", response_model=BlockList)
async def list_blocks(context: Shared, caller: Caller, query: Annotated[BlockQuery, Query()]) -> Response:
    """List blocks in the order of their keys: those for which all that is asked for holds."""
    wanted = block_filter(query, caller)
    after = bytes.fromhex(query.cursor) if query.cursor else None

    def build() -> BlockList:
        found = context.admin.blocks(wanted, after, query.limit)
        blocks = [block_view(block) for block in found.blocks]
        return BlockList(data=blocks, next_cursor=found.next.hex() if found.next else None, total=found.total)

    return await context.told(build)


@router.get("/blocks/{key}", responses=errors(404))
async def get_block(context: Shared, caller: Caller, key: Annotated[Key, Path()]) -> BlockView:
    """Tell what there is to tell of one block."""
    block = await context.threads.run(lambda: context.admin.block(bytes.fromhex(key)))
    if block is None or scope_of(caller) not in {None, block.tenant}:
        raise AbsentError("block", key)
    return block_view(block)


@router.get("/prefixes", response_model=PrefixList)
async def list_prefixes(
    context: Shared,
    caller: Caller,
    by: Literal["bytes", "hits", "recent"] = "bytes",
    limit: Annotated[Limit, Query()] = 100,
    cursor: Annotated[Cursor | None, Query()] = None,
) -> Response:
    """List the prefixes that are there: the largest, the hottest, or those that were used last."""
    tenant = scope_of(caller)

    def build() -> PrefixList:
        found = context.admin.prefixes(by, _MOST_RANKED, tenant)
        shown, next_cursor = page(found, cursor, limit)
        return PrefixList(data=[prefix_view(one) for one in shown], next_cursor=next_cursor, total=len(found))

    return await context.told(build)


@router.post("/resolve", response_model=Resolved, responses=errors(404))
async def resolve(context: Shared, caller: Caller, fields: SelectionFields) -> Response:
    """Tell the blocks of a prompt or chat, or of a selection, and where each of them is."""
    chosen = await chosen_by(context, caller, fields.selection)
    return await context.told(lambda: _resolved(context, chosen))


def _resolved(context: AdminContext, chosen: Chosen) -> Resolved:
    """Return where blocks are, in the order in which they were named."""
    if chosen.keys is None:
        raise RequestError("selection", "must name keys or a prompt; GET /admin/blocks lists by filter")
    there = {block.key: block for block in context.admin.blocks(chosen.blocks, None, len(chosen.keys)).blocks}
    blocks = [resolved_block(index, key, there.get(key)) for index, key in enumerate(chosen.keys)]
    return Resolved(data=blocks, num_tokens=chosen.num_tokens, block_tokens=chosen.block_tokens)
