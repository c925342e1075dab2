"""The routes on which blocks flow: looked up and loaded, offered and stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from api.http_errors import error_body
from api.store.context import GONE, Client, Shared, Writer
from api.store.schema import LookupFields, ReservationFields, key_bytes
from api.store.waiting import ended
from kvstore.errors import LeaseExpiredError, RequestError
from kvstore.frame import checksum
from kvstore.loading import LoadedBlock
from kvstore.remote.http_transport import CHECKSUM_HEADER, TIER_HEADER
from kvstore.remote.transport import Offer

_PIECE_BYTES = 1 << 20
_LONGEST_S = 3600.0

router = APIRouter(prefix="/store", tags=["store"])


@router.post("/lookups")
async def look_up(context: Shared, client: Client, fields: LookupFields) -> dict[str, Any]:
    """Look a prompt's blocks up; what is there is leased under the number returned (0: nothing is)."""
    keys = [key_bytes(key) for key in fields.keys]
    lease, hit = await context.threads.run(lambda: client.look_up(keys, fields.lease_s, fields.ttl_s))
    sizes = iter(record.raw_bytes for record in hit.records)
    return {
        "lease": lease,
        "lease_s": hit.deadline_s - context.store.now_s(),
        "tiers": hit.tiers,
        "nbytes": [None if tier is None else next(sizes) for tier in hit.tiers],
    }


@router.delete("/lookups/{lease}", status_code=204)
async def release(client: Client, lease: int) -> None:
    """Give a lease back; nothing happens when it is over."""
    client.release(lease)


@router.get("/lookups/{lease}/blocks/{index}", responses=GONE, response_class=StreamingResponse)
async def load(
    context: Shared,
    client: Client,
    lease: int,
    index: int,
    timeout_s: Annotated[float, Query(gt=0, le=_LONGEST_S)] = 10.0,
) -> Response:
    """Return the bytes of a leased block, with their xxh3-64 and their tier in headers."""
    store, hit = context.store, client.lease(lease)
    ticket = None
    if hit is not None and 0 <= index < len(hit.keys):
        try:
            ticket = await ended(
                lambda done: store.load(hit, index, store.now_s() + timeout_s, done), timeout_s
            )
        except LeaseExpiredError:
            ticket = None
    block = None if ticket is None else ticket.take()
    if block is None:
        return _gone("the block is not there")
    headers = {
        CHECKSUM_HEADER: f"{checksum(block.data):016x}",
        TIER_HEADER: block.tier,
        "Content-Length": str(len(block.data)),
    }
    return StreamingResponse(_pieces(block), media_type="application/octet-stream", headers=headers)


@router.post("/reservations")
async def reserve(context: Shared, client: Client, fields: ReservationFields) -> dict[str, int]:
    """Offer a block; returns the number to send its bytes under, 0: it is not wanted, or not from you."""
    offer = Offer(
        key_bytes(fields.namespace), key_bytes(fields.key), key_bytes(fields.parent or ""), fields.nbytes,
        fields.num_tokens, fields.first_token, fields.ttl_s,
    )  # fmt: skip
    return {"reservation": await context.threads.run(lambda: client.reserve(offer))}


@router.put("/reservations/{number}", status_code=204, responses=GONE)
async def commit(context: Shared, client: Writer, number: int, request: Request) -> Response:
    """Send a reserved block's bytes, all of them; it is visible when this is answered."""
    reservation = client.take(number)
    if reservation is None:
        return _gone("there is no such reservation")
    try:
        await _fill(reservation.view, request)
    except BaseException:
        reservation.abort()
        raise
    await context.threads.run(lambda: reservation.commit(checksum(reservation.view)))
    return Response(status_code=204)


@router.delete("/reservations/{number}", status_code=204)
async def abort(client: Writer, number: int) -> None:
    """Give a reservation back."""
    client.abort(number)


async def _fill(view: memoryview, request: Request) -> None:
    """Receive a body into ``view``. Raises ``RequestError`` when it has another length."""
    filled = 0
    async for piece in request.stream():
        if filled + len(piece) > len(view):
            raise RequestError("body", f"is longer than the {len(view)} bytes reserved")
        view[filled : filled + len(piece)] = piece
        filled += len(piece)
    if filled < len(view):
        raise RequestError("body", f"has {filled} of the {len(view)} bytes reserved")


async def _pieces(block: LoadedBlock) -> AsyncIterator[memoryview]:
    try:
        for start in range(0, len(block.data), _PIECE_BYTES):
            yield block.data[start : start + _PIECE_BYTES]
    finally:
        block.release()


def _gone(reason: str) -> Response:
    return JSONResponse(error_body(reason, "invalid_request_error", None, "not_found"), 404)
