"""The routes on which blocks flow: looked up and loaded, offered and stored."""

from __future__ import annotations

import asyncio
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from api.error_schema import Responses, errors
from api.few_threads import FewThreads
from api.http_errors import error_body
from api.store.answers import Found, Reserved
from api.store.context import GONE, Client, Shared, Writer
from api.store.moving import BlockResponse, Octets
from api.store.schema import LookupFields, ReservationFields, key_bytes
from api.store.waiting import ended
from kvstore.errors import LeaseExpiredError, OverloadedError, RequestError
from kvstore.frame import checksum, copy_and_checksum
from kvstore.leases import Hit
from kvstore.loading import Ticket
from kvstore.remote.http_transport import CHECKSUM_HEADER, TIER_HEADER
from kvstore.remote.patience import patience_s
from kvstore.remote.transport import Offer

_LONGEST_S = 3600.0
_BODY_S = 60.0


class _Copied(NamedTuple):
    data: memoryview
    checksum: int
    tier: str


class _Loading:
    """A block that is loaded and then copied, for others need its memory; at once if it is there."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self.copied = self.copy() if ticket.done() else None

    def done(self) -> bool:
        """Say whether the load has ended."""
        return self._ticket.done()

    def abandon(self) -> None:
        """Give it up."""
        self._ticket.abandon()

    def copy(self) -> _Copied | None:
        """Return the copy; ``None``: the block is not there."""
        block = self._ticket.take()
        if block is None:
            return None
        try:
            data = memoryview(bytearray(len(block.data)))
            return _Copied(data, copy_and_checksum(block.data, data), block.tier)
        finally:
            block.release()


_OCTETS = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_BLOCK: Responses = {200: {"description": "The block's bytes.", "content": _OCTETS}}
_BODY = {"requestBody": {"required": True, "description": "The block's bytes.", "content": _OCTETS}}

router = APIRouter(prefix="/store", tags=["store"], responses=errors(429))


@router.post("/lookups")
async def look_up(context: Shared, client: Client, fields: LookupFields) -> Found:
    """Look a prompt's blocks up; what is there is leased under the number returned (0: nothing is)."""

    def find() -> tuple[int, Hit]:
        return client.look_up([key_bytes(key) for key in fields.keys], fields.lease_s, fields.ttl_s)

    lease, hit = await context.threads.run(find)
    sizes = iter(record.raw_bytes for record in hit.records)
    return Found(
        lease=lease,
        lease_s=hit.deadline_s - context.store.now_s(),
        tiers=list(hit.tiers),
        nbytes=[None if tier is None else next(sizes) for tier in hit.tiers],
    )


@router.delete("/lookups/{lease}", status_code=204)
async def release(context: Shared, client: Client, lease: int) -> None:
    """Give a lease back; nothing happens when it is over."""
    await context.threads.run(lambda: client.release(lease))


@router.get("/lookups/{lease}/blocks/{index}", responses=_BLOCK | GONE, response_class=Octets)
async def load(
    context: Shared,
    client: Client,
    lease: int,
    index: int,
    timeout_s: Annotated[float, Query(gt=0, le=_LONGEST_S)] = 10.0,
) -> Response:
    """Return the bytes of a leased block, with their xxh3-64 and their tier in headers."""
    store, hit = context.store, client.lease(lease)
    if hit is None or not 0 <= index < len(hit.keys):
        return _gone("there is no such lease")
    ends_s = store.now_s() + patience_s(timeout_s)
    try:
        loading = await ended(
            lambda done: _Loading(store.load(hit, index, ends_s, done)), timeout_s, context.threads
        )
    except LeaseExpiredError:
        return _gone("the lease is over")
    copied = None if loading is None else await _copied(loading, context.threads)
    if copied is None:
        return _gone("the block is not there")
    headers = {CHECKSUM_HEADER: f"{copied.checksum:016x}", TIER_HEADER: copied.tier}
    return BlockResponse(copied.data, headers, context.moving, client)


@router.post("/reservations")
async def reserve(context: Shared, client: Client, fields: ReservationFields) -> Reserved:
    """Offer a block; returns the number to send its bytes under, 0: it is not wanted, or not from you."""
    offer = Offer(
        key_bytes(fields.namespace), key_bytes(fields.key), key_bytes(fields.parent or ""), fields.nbytes,
        fields.num_tokens, fields.first_token, fields.ttl_s,
    )  # fmt: skip
    return Reserved(reservation=await context.threads.run(lambda: client.reserve(offer)))


@router.put("/reservations/{number}", status_code=204, responses=GONE | errors(403), openapi_extra=_BODY)
async def commit(context: Shared, client: Writer, number: int, request: Request) -> Response:
    """Send a reserved block's bytes, all of them; it is visible when this is answered."""
    reservation = client.take(number)
    if reservation is None:
        return _gone("there is no such reservation")
    try:
        with context.moving.moves(client, len(reservation.view)):
            await _fill(reservation.view, request)
    except BaseException:
        reservation.abort()
        raise
    try:
        await context.threads.run(lambda: reservation.commit(checksum(reservation.view)))
    except OverloadedError:  # it has not begun, and nobody else would give the memory back
        reservation.abort()
        raise
    return Response(status_code=204)


@router.delete("/reservations/{number}", status_code=204, responses=errors(403))
async def abort(context: Shared, client: Writer, number: int) -> None:
    """Give a reservation back."""
    await context.threads.run(lambda: client.abort(number))


async def _copied(loading: _Loading, threads: FewThreads) -> _Copied | None:
    """Return the copy of a block whose load has ended. Raises ``OverloadedError``, and lets go of it then."""
    try:
        return loading.copied or await threads.run(loading.copy)
    except OverloadedError:
        loading.abandon()
        raise


async def _fill(view: memoryview, request: Request) -> None:
    """Receive a body into ``view``. Raises ``RequestError``: it has another length, or comes too slowly."""
    filled = 0
    try:
        async with asyncio.timeout(_BODY_S):
            async for piece in request.stream():
                if filled + len(piece) > len(view):
                    raise RequestError("body", f"is longer than the {len(view)} bytes reserved")
                view[filled : filled + len(piece)] = piece
                filled += len(piece)
    except TimeoutError:
        raise RequestError("body", f"was not there within {_BODY_S:.0f} seconds") from None
    if filled < len(view):
        raise RequestError("body", f"has {filled} of the {len(view)} bytes reserved")


def _gone(reason: str) -> Response:
    return JSONResponse(error_body(reason, "invalid_request_error", None, "not_found"), 404)
